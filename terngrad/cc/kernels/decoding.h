// Decodes the sum of a mesh's operation while parts of it are on their way.

#ifndef TERNGRAD_CC_KERNELS_DECODING_H_
#define TERNGRAD_CC_KERNELS_DECODING_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/spans.h"
#include "terngrad/cc/kernels/targets.h"
#include "terngrad/cc/net/mesh.h"

namespace terngrad {

constexpr int64_t kFewRows = 512;  // decoded sooner than a thread wakes

// Ends an op; `failure` is empty if there is none.
using Ending = std::function<void(const std::string& failure)>;

// Keeps memory until all of it is sent. While a reference to a tensor exists,
// no other op writes to it.
struct OperationTensors {
  tensorflow::Tensor input;
  tensorflow::Tensor output;
};

// Decodes a sum piece by piece, as they arrive, on the threads of a pool.
class Decoding : public std::enable_shared_from_this<Decoding> {
 public:
  // `tensors.output` has the sums. They and the targets live until `ending`.
  Decoding(const Declaration& declaration, OperationTensors tensors,
           Targets targets, tensorflow::thread::ThreadPool* threads)
      : name_(declaration.name),
        kernels_(*declaration.kernels),
        tensors_(std::move(tensors)),
        sums_{tensors_.output.flat<uint32_t>().data(),
              declaration.planes_out()},
        targets_(std::move(targets)),
        threads_(threads) {}

  const OperationTensors& tensors() const { return tensors_; }
  void set_ending(Ending ending) { ending_ = std::move(ending); }

  // Decodes rows of the sum, soon.
  void Begin(int64_t first, int64_t count) {
    ++left_;
    if (count <= kFewRows) return Decode(first, count);
    threads_->Schedule([self = shared_from_this(), first, count] {
      const tensorflow::port::ScopedFlushDenormal flush;
      self->Decode(first, count);
    });
  }

  // No more rows will come. Ends the op when those that came are decoded.
  void Finish(const std::string& failure) {
    failure_ = failure;
    Leave();
  }

 private:
  void Decode(int64_t first, int64_t count) {
    {
      const tsl::profiler::TraceMe traced(
          [this] { return SpanName(name_, "TerngradDecode"); });
      kernels_.decode(sums_, targets_.items.data(), targets_.items.size(),
                      first, first + count);
    }
    Leave();
  }

  void Leave() {
    if (--left_) return;
    const Ending ending =
        std::move(ending_);  // frames may be queued for longer
    ending(failure_);
  }

  const std::string name_;  // of the operation
  const Kernels& kernels_;
  const OperationTensors tensors_;
  const Planes sums_;
  const Targets targets_;
  tensorflow::thread::ThreadPool* const threads_;
  Ending ending_;
  std::string failure_;
  std::atomic<int64_t> left_{1};  // pieces, and one for `Finish`
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_DECODING_H_
