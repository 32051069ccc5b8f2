// Shared by the kernels: choosing the path and splitting work.

#ifndef TERNGRAD_CC_KERNELS_COMMON_H_
#define TERNGRAD_CC_KERNELS_COMMON_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/denormal.h"
#include "terngrad/cc/lib/kernels.h"

namespace terngrad {

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A kernel with the attribute `path`.
class PathOpKernel : public tensorflow::OpKernel {
 public:
  explicit PathOpKernel(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    std::string path;
    OP_REQUIRES_OK(context, context->GetAttr("path", &path));
    kernels_ = FindKernels(path.c_str());
    OP_REQUIRES(
        context, kernels_ != nullptr,
        Invalid("path is '", path, "'; allowed are ", SupportedPaths()));
  }

 protected:
  const Kernels& kernels() const { return *kernels_; }

 private:
  const Kernels* kernels_ = nullptr;
};

// Calls run(begin, end) for ranges that cover [0, total), on the device's
// threads; `cycles` is the rough cost of one unit.
template <class Run>
void Split(tensorflow::OpKernelContext* context, int64_t total, int64_t cycles,
           const Run& run) {
  auto* threads = context->device()->tensorflow_cpu_worker_threads()->workers;
  threads->ParallelFor(total, cycles, [&run](int64_t begin, int64_t end) {
    // Some threads that run this do not flush denormals yet.
    const tensorflow::port::ScopedFlushDenormal flush;
    run(begin, end);
  });
}

inline int64_t WordsOf(int64_t elements) {
  return (elements + kWordBits - 1) / kWordBits;
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_COMMON_H_
