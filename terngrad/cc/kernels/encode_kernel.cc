#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/sources.h"

namespace terngrad {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class EncodeOp : public PathOpKernel {
 public:
  explicit EncodeOp(OpKernelConstruction* context)
      : PathOpKernel(context), reader_(context) {}

  void Compute(OpKernelContext* context) override {
    Sources sources;
    OP_REQUIRES_OK(context, reader_.Read(context, &sources));

    const int64_t rows = WordsOf(sources.elements);
    Tensor* output;
    OP_REQUIRES_OK(
        context, context->allocate_output(0, {rows, sources.planes}, &output));
    uint32_t* words = output->flat<uint32_t>().data();
    constexpr int64_t kCycles = 2 * kWordBits;
    Split(context, rows, kCycles, [&](int64_t begin, int64_t end) {
      Encode(kernels(), sources, begin, end, words);
    });
  }

 private:
  const SourcesReader reader_;
};

REGISTER_KERNEL_BUILDER(Name("TerngradEncode").Device(tensorflow::DEVICE_CPU),
                        EncodeOp);

}  // namespace
}  // namespace terngrad
