#include <vector>

#include "terngrad/cc/kernels/addends.h"
#include "terngrad/cc/kernels/common.h"

namespace terngrad {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class SumOp : public PathOpKernel {
 public:
  explicit SumOp(OpKernelConstruction* context) : PathOpKernel(context) {
    OP_REQUIRES_OK(context, ReadPlanes(context, &planes_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Planes> inputs;
    int64_t rows;
    OP_REQUIRES_OK(context, ReadWords(context, &inputs, &rows));
    const int64_t cycles = planes_ * static_cast<int64_t>(inputs.size());
    Tensor* output;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {rows, planes_}, &output));
    uint32_t* total = output->flat<uint32_t>().data();
    Split(context, rows, cycles, [&](int64_t begin, int64_t end) {
      kernels().sum(inputs.data(), inputs.size(), planes_, begin, end, total);
    });
  }

 private:
  int planes_;
};

REGISTER_KERNEL_BUILDER(Name("TerngradSum").Device(tensorflow::DEVICE_CPU),
                        SumOp);

}  // namespace
}  // namespace terngrad
