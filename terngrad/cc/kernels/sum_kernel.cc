#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class SumOp : public PathOpKernel {
 public:
  explicit SumOp(OpKernelConstruction* context) : PathOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("planes", &planes_));
    OP_REQUIRES(
        context, planes_ >= 1 && planes_ <= kMaxPlanes,
        Invalid("planes is ", planes_, "; allowed are 1 to ", kMaxPlanes));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList words;
    OP_REQUIRES_OK(context, context->input_list("words", &words));
    std::vector<Planes> inputs;
    const int64_t rows = words[0].dims() == 2 ? words[0].dim_size(0) : -1;
    int64_t cycles = 0;
    for (const Tensor& input : words) {
      OP_REQUIRES(context,
                  input.dims() == 2 && input.dim_size(0) == rows &&
                      input.dim_size(1) >= 1 && input.dim_size(1) <= kMaxPlanes,
                  Invalid("shape of words is ", input.shape().DebugString(),
                          "; allowed is [G, 1 to ", kMaxPlanes,
                          "] with the same G for all"));
      inputs.push_back(
          {input.flat<uint32_t>().data(), static_cast<int>(input.dim_size(1))});
      cycles += planes_;
    }
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
