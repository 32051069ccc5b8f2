#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;

class DecodeOp : public PathOpKernel {
 public:
  explicit DecodeOp(OpKernelConstruction* context) : PathOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES(context,
                static_cast<int>(shapes_.size()) == context->num_outputs(),
                Invalid("shapes has ", shapes_.size(), " entries; n is ",
                        context->num_outputs()));
    for (const TensorShape& shape : shapes_) elements_ += shape.num_elements();
  }

  void Compute(OpKernelContext* context) override {
    Planes sums;
    std::vector<Target> targets;
    ReadSums(context, &sums);
    if (context->status().ok()) MakeTargets(context, &targets);
    if (!context->status().ok()) return;
    const int64_t cycles = kWordBits / 4 * sums.planes;
    Split(context, WordsOf(elements_), cycles, [&](int64_t begin, int64_t end) {
      kernels().decode(sums, targets.data(), targets.size(), begin, end);
    });
  }

 private:
  void ReadSums(OpKernelContext* context, Planes* sums) const {
    const Tensor* words;
    OP_REQUIRES_OK(context, context->input("words", &words));
    OP_REQUIRES(context,
                words->dims() == 2 &&
                    words->dim_size(0) == WordsOf(elements_) &&
                    words->dim_size(1) >= 1 && words->dim_size(1) <= kMaxPlanes,
                Invalid("shape of words is ", words->shape().DebugString(),
                        "; allowed is [", WordsOf(elements_), ", 1 to ",
                        kMaxPlanes, "]"));
    *sums = {words->flat<uint32_t>().data(),
             static_cast<int>(words->dim_size(1))};
  }

  // Allocates the outputs.
  void MakeTargets(OpKernelContext* context,
                   std::vector<Target>* targets) const {
    const Tensor *scales, *nodes;
    OpOutputList means;
    OP_REQUIRES_OK(context, context->input("scales", &scales));
    OP_REQUIRES_OK(context, context->input("nodes", &nodes));
    OP_REQUIRES_OK(context, context->output_list("means", &means));
    const int64_t n = shapes_.size();
    OP_REQUIRES(context,
                TensorShapeUtils::IsVector(scales->shape()) &&
                    scales->NumElements() == n,
                Invalid("shape of scales is ", scales->shape().DebugString(),
                        "; allowed is [", n, "]"));
    OP_REQUIRES(context,
                TensorShapeUtils::IsScalar(nodes->shape()) &&
                    nodes->scalar<int32_t>()() >= 1,
                Invalid("nodes must be a scalar of 1 or more"));
    const float divisor = static_cast<float>(nodes->scalar<int32_t>()());
    for (int64_t i = 0; i < n; ++i) {
      Tensor* mean;
      OP_REQUIRES_OK(context, means.allocate(i, shapes_[i], &mean));
      const float scale = scales->vec<float>()(i);
      const float usable = scale >= kSmallestScale ? scale : 0.0f;
      targets->push_back(
          {mean->flat<float>().data(), mean->NumElements(), usable / divisor});
    }
  }

  std::vector<TensorShape> shapes_;
  int64_t elements_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TerngradDecode").Device(tensorflow::DEVICE_CPU),
                        DecodeOp);

}  // namespace
}  // namespace terngrad
