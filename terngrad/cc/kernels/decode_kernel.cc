#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/targets.h"

namespace terngrad {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::TensorShape;

class DecodeOp : public PathOpKernel {
 public:
  explicit DecodeOp(OpKernelConstruction* context)
      : PathOpKernel(context), parts_(context) {
    OP_REQUIRES_OK(context, ReadShapes(context, &shapes_, &elements_));
  }

  void Compute(OpKernelContext* context) override {
    Planes sums;
    Targets targets;
    OP_REQUIRES_OK(context, ReadSums(context, elements_, &sums));
    OP_REQUIRES_OK(context, MakeTargets(context, shapes_, parts_, &targets));
    const int64_t cycles = kWordBits / 4 * sums.planes;
    Split(context, WordsOf(elements_), cycles, [&](int64_t begin, int64_t end) {
      kernels().decode(sums, targets.items.data(), targets.items.size(), begin,
                       end);
    });
  }

 private:
  const PartsOfVariables parts_;
  std::vector<TensorShape> shapes_;
  int64_t elements_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TerngradDecode").Device(tensorflow::DEVICE_CPU),
                        DecodeOp);

}  // namespace
}  // namespace terngrad
