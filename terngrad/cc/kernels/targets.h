// Memory for the mean gradients of a bucket: outputs of an op.

#ifndef TERNGRAD_CC_KERNELS_TARGETS_H_
#define TERNGRAD_CC_KERNELS_TARGETS_H_

#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {

// Allocates the outputs `means`, of these shapes, and reads from the inputs
// `scales` and `nodes` what a sum of 1 stands for. Also for asynchronous ops,
// in which OP_REQUIRES ends the process.
inline absl::Status MakeTargets(
    tensorflow::OpKernelContext* context,
    const std::vector<tensorflow::TensorShape>& shapes,
    std::vector<Target>* targets) {
  const tensorflow::Tensor *scales, *nodes;
  tensorflow::OpOutputList means;
  TF_RETURN_IF_ERROR(context->input("scales", &scales));
  TF_RETURN_IF_ERROR(context->input("nodes", &nodes));
  TF_RETURN_IF_ERROR(context->output_list("means", &means));
  const int64_t n = shapes.size();
  if (!tensorflow::TensorShapeUtils::IsVector(scales->shape()) ||
      scales->NumElements() != n) {
    return Invalid("shape of scales is ", scales->shape().DebugString(),
                   "; allowed is [", n, "]");
  }
  if (!tensorflow::TensorShapeUtils::IsScalar(nodes->shape()) ||
      nodes->scalar<int32_t>()() < 1) {
    return Invalid("nodes must be a scalar of 1 or more");
  }
  const float divisor = static_cast<float>(nodes->scalar<int32_t>()());
  for (int64_t i = 0; i < n; ++i) {
    tensorflow::Tensor* mean;
    TF_RETURN_IF_ERROR(means.allocate(i, shapes[i], &mean));
    const float scale = scales->vec<float>()(i);
    const float usable = scale >= kSmallestScale ? scale : 0.0f;
    targets->push_back(
        {mean->flat<float>().data(), mean->NumElements(), usable / divisor});
  }
  return absl::OkStatus();
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_TARGETS_H_
