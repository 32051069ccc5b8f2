// Launches the kernels of kernels.cu on a GPU.
//
// A call returns "" or why it failed, in one line. It does not block: kernels
// run on the caller's stream, after the work there. Arrays are in the device's
// memory; tables are not, and may change after the call.
//
// Calls from several threads do not disturb each other.

#ifndef TERNGRAD_CC_GPU_LAUNCH_H_
#define TERNGRAD_CC_GPU_LAUNCH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "terngrad/cc/gpu/driver.h"
#include "terngrad/cc/gpu/tables.h"

namespace terngrad {
namespace gpu {

// A whole variable to measure.
struct Gradient {
  const void* values;
  int64_t size;
  Parts parts;
  ValueType type;
};

// Where a launch runs, and memory of the device for it: as many bytes as the
// launch's function `...Bytes` says, at a multiple of 8. What follows on the
// stream may use them again.
struct Place {
  Stream stream;
  void* scratch;
};

// A device and the kernels on it.
class Gpu {
 public:
  // Opens a device of a driver; see OpenDriver for `library`.
  static std::string Open(const char* library, int ordinal,
                          std::unique_ptr<Gpu>* gpu);

  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Compute capability, such as 90 for 9.0.
  int capability() const { return capability_; }

  // Loads kernels that NVRTC compiled; to be called once, before launches.
  std::string Load(const void* code);

  // Writes the statistics of the parts of variables, one after the other, as
  // terngrad::Statistics does.
  std::string Stats(const Gradient* gradients, int64_t count, float* sums,
                    float* squares, float* max_abs, const Place& place) const;
  static int64_t StatsBytes(const Gradient* gradients, int64_t count);

  // Launches fill in the offsets of the tables' items.

  // Writes the codes of a bucket: words[rows * PlaneCount(largest code)].
  std::string Encode(const char* encoder, const Source* sources, int64_t count,
                     const NodeKey& key, int64_t rows, uint32_t* words,
                     const Place& place) const;

  // Writes the sum of buckets, modulo 2^planes: total[rows * planes].
  std::string Sum(const Planes* inputs, int64_t count, int planes, int64_t rows,
                  uint32_t* total, const Place& place) const;

  // Writes the values that sums stand for.
  std::string Decode(const Planes& sums, const Target* targets, int64_t count,
                     const UnitRule& units, int64_t rows,
                     const Place& place) const;

  // Writes the rounding error of codes.
  std::string Subtract(const Planes& codes, const Kept* variables,
                       int64_t count, const UnitRule& units, int64_t rows,
                       const Place& place) const;

  // Updates variables with the means that sums stand for.
  std::string ApplyUpdate(const Planes& sums, const Trained* variables,
                          int64_t count, const Update& update,
                          const UnitRule& units, int64_t rows,
                          const Place& place) const;

  // Writes the sums of gradients and a codec's memory.
  std::string Correct(const Corrected* variables, int64_t count, int64_t rows,
                      const Place& place) const;

  // For all of these.
  template <class Item>
  static int64_t TableBytes(int64_t count) {
    return count * static_cast<int64_t>(sizeof(Item));
  }

  // Copies bytes from the host's memory, which may change after the call.
  std::string Upload(const void* from, int64_t bytes, void* to,
                     Stream stream) const;

  // Copies bytes from the device's memory.
  std::string Copy(const void* from, int64_t bytes, void* to,
                   Stream stream) const;

 private:
  class Current;  // makes the device's context that of the thread

  Gpu(const Driver& driver, int device, void* context, int capability)
      : driver_(driver),
        device_(device),
        context_(context),
        capability_(capability) {}

  // Copies a table to scratch memory and launches a kernel with its place
  // there as argument `place_of_table`.
  template <class Item>
  std::string RunWithTable(const char* entry, const Item* items, int64_t count,
                           int64_t blocks, void** arguments, int place_of_table,
                           const Place& place) const;

  std::string Launch(const char* entry, int64_t blocks, int threads,
                     void** arguments, Stream stream) const;

  const Driver driver_;
  const int device_;
  void* const context_;
  const int capability_;
  void* module_ = nullptr;
};

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_LAUNCH_H_
