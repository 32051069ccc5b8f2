// Blocks and warps of threads. On GPUs each thread runs these functions for
// itself; on the host one thread runs them for all threads of a block, in
// turn, so that the same kernels can be tested without a GPU.

#ifndef TERNGRAD_CC_GPU_WARP_H_
#define TERNGRAD_CC_GPU_WARP_H_

#include "terngrad/cc/lib/device.h"

namespace terngrad {
namespace gpu {

inline constexpr int kWarpLanes = 32;

#ifdef __CUDACC__

#define TERNGRAD_SHARED __shared__

// A variable of each lane.
template <class T>
class PerLane {
 public:
  __device__ T& operator[](int) { return value_; }
  __device__ const T& operator[](int) const { return value_; }

 private:
  T value_;
};

// All lanes call its functions together.
class Warp {
 public:
  __device__ explicit Warp(int index) : index_(index) {}
  __device__ int index() const { return index_; }

  // Calls run(lane) for each lane.
  template <class Run>
  __device__ void ForLanes(Run run) const {
    run(static_cast<int>(threadIdx.x % kWarpLanes));
  }

  // Returns a word whose bit i is is_set(i).
  template <class IsSet>
  __device__ uint32_t Ballot(IsSet is_set) const {
    return __ballot_sync(~0u,
                         is_set(static_cast<int>(threadIdx.x % kWarpLanes)));
  }

  // Lanes i and i + 16 exchange x.
  __device__ void SwapHalves(PerLane<uint32_t>* x) const {
    (*x)[0] = __shfl_xor_sync(~0u, (*x)[0], kWarpLanes / 2);
  }

 private:
  int index_;
};

// All threads call its functions together.
class Block {
 public:
  __device__ int64_t index() const { return blockIdx.x; }
  __device__ int threads() const { return blockDim.x; }

  // Calls run(thread) for each thread.
  template <class Run>
  __device__ void ForThreads(Run run) const {
    run(static_cast<int>(threadIdx.x));
  }

  // Calls run(warp) for each warp.
  template <class Run>
  __device__ void ForWarps(Run run) const {
    run(Warp(threadIdx.x / kWarpLanes));
  }

  // Returns once all threads have called it; all see what any wrote before.
  __device__ void Wait() const { __syncthreads(); }
};

#else  // the host

#define TERNGRAD_SHARED

template <class T>
class PerLane {
 public:
  T& operator[](int lane) { return values_[lane]; }
  const T& operator[](int lane) const { return values_[lane]; }

 private:
  T values_[kWarpLanes];
};

class Warp {
 public:
  explicit Warp(int index) : index_(index) {}
  int index() const { return index_; }

  template <class Run>
  void ForLanes(Run run) const {
    for (int lane = 0; lane < kWarpLanes; ++lane) run(lane);
  }

  template <class IsSet>
  uint32_t Ballot(IsSet is_set) const {
    uint32_t word = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      word |= uint32_t{is_set(lane)} << lane;
    }
    return word;
  }

  void SwapHalves(PerLane<uint32_t>* x) const {
    for (int lane = 0; lane < kWarpLanes / 2; ++lane) {
      const uint32_t lower = (*x)[lane];
      (*x)[lane] = (*x)[lane + kWarpLanes / 2];
      (*x)[lane + kWarpLanes / 2] = lower;
    }
  }

 private:
  int index_;
};

class Block {
 public:
  Block(int64_t index, int threads) : index_(index), threads_(threads) {}
  int64_t index() const { return index_; }
  int threads() const { return threads_; }

  template <class Run>
  void ForThreads(Run run) const {
    for (int thread = 0; thread < threads_; ++thread) run(thread);
  }

  template <class Run>
  void ForWarps(Run run) const {
    for (int warp = 0; warp < threads_ / kWarpLanes; ++warp) run(Warp(warp));
  }

  void Wait() const {}

 private:
  int64_t index_;
  int threads_;
};

#endif

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_WARP_H_
