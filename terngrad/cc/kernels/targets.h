// The inputs and outputs of the ops that decode sums of codes. All functions
// return errors, so that asynchronous ops can use them, too: in these
// OP_REQUIRES would end the process.

#ifndef TERNGRAD_CC_KERNELS_TARGETS_H_
#define TERNGRAD_CC_KERNELS_TARGETS_H_

#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/parts.h"
#include "terngrad/cc/lib/code_rules.h"

namespace terngrad {

// Reads the attribute `shapes`, those of the outputs, and adds up their sizes.
inline absl::Status ReadShapes(tensorflow::OpKernelConstruction* context,
                               std::vector<tensorflow::TensorShape>* shapes,
                               int64_t* elements) {
  TF_RETURN_IF_ERROR(context->GetAttr("shapes", shapes));
  if (static_cast<int>(shapes->size()) != context->num_outputs()) {
    return Invalid("shapes has ", shapes->size(), " entries; n is ",
                   context->num_outputs());
  }
  for (const auto& shape : *shapes) *elements += shape.num_elements();
  return absl::OkStatus();
}

// Reads the input `words`, sums of the codes of so many elements.
inline absl::Status ReadSums(tensorflow::OpKernelContext* context,
                             int64_t elements, Planes* sums) {
  const tensorflow::Tensor* words;
  TF_RETURN_IF_ERROR(context->input("words", &words));
  if (words->dims() != 2 || words->dim_size(0) != WordsOf(elements) ||
      words->dim_size(1) < 1 || words->dim_size(1) > kMaxPlanes) {
    return Invalid("shape of words is ", words->shape().DebugString(),
                   "; allowed is [", WordsOf(elements), ", 1 to ", kMaxPlanes,
                   "]");
  }
  *sums = {words->flat<uint32_t>().data(),
           static_cast<int>(words->dim_size(1))};
  return absl::OkStatus();
}

// Finds the input `units`, what a code of 1 stands for in each part of the
// variables.
inline absl::Status FindUnits(tensorflow::OpKernelContext* context,
                              const PartsOfVariables& parts,
                              const float** values) {
  const tensorflow::Tensor* units;
  TF_RETURN_IF_ERROR(context->input("units", &units));
  if (!tensorflow::TensorShapeUtils::IsVector(units->shape()) ||
      units->NumElements() != parts.total()) {
    return Invalid("shape of units is ", units->shape().DebugString(),
                   "; allowed is [", parts.total(), "]");
  }
  *values = units->vec<float>().data();
  return absl::OkStatus();
}

// Reads the input `nodes`, the number of nodes in sums.
inline absl::Status ReadNodes(tensorflow::OpKernelContext* context,
                              float* number) {
  const tensorflow::Tensor* nodes;
  TF_RETURN_IF_ERROR(context->input("nodes", &nodes));
  if (!tensorflow::TensorShapeUtils::IsScalar(nodes->shape()) ||
      nodes->scalar<int32_t>()() < 1) {
    return Invalid("nodes must be a scalar of 1 or more");
  }
  *number = static_cast<float>(nodes->scalar<int32_t>()());
  return absl::OkStatus();
}

// Reads the input `units`, and divides it.
inline absl::Status ReadUnits(tensorflow::OpKernelContext* context,
                              const PartsOfVariables& parts, float divisor,
                              NumbersOfParts* quotients) {
  const float* values;
  TF_RETURN_IF_ERROR(FindUnits(context, parts, &values));
  *quotients = NumbersOfParts(
      parts, [&](int64_t i) { return MeanUnitOf(values[i], divisor); });
  return absl::OkStatus();
}

// Reads from the inputs `units` and `nodes` what a sum of 1 stands for in each
// part of the variables.
inline absl::Status ReadMeanUnits(tensorflow::OpKernelContext* context,
                                  const PartsOfVariables& parts,
                                  NumbersOfParts* mean_units) {
  float nodes;
  TF_RETURN_IF_ERROR(ReadNodes(context, &nodes));
  return ReadUnits(context, parts, nodes, mean_units);
}

// Memory for a bucket's means, and their units.
struct Targets {
  NumbersOfParts units;
  std::vector<Target> items;
};

// Allocates the outputs `means`, of these shapes, and reads their units.
inline absl::Status MakeTargets(
    tensorflow::OpKernelContext* context,
    const std::vector<tensorflow::TensorShape>& shapes,
    const PartsOfVariables& parts, Targets* targets) {
  TF_RETURN_IF_ERROR(ReadMeanUnits(context, parts, &targets->units));
  tensorflow::OpOutputList means;
  TF_RETURN_IF_ERROR(context->output_list("means", &means));
  for (size_t i = 0; i < shapes.size(); ++i) {
    tensorflow::Tensor* mean;
    TF_RETURN_IF_ERROR(means.allocate(i, shapes[i], &mean));
    targets->items.push_back({mean->flat<float>().data(), mean->NumElements(),
                              Units{parts[i], targets->units[i]}});
  }
  return absl::OkStatus();
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_TARGETS_H_
