// The inputs and the attribute of the op that sums codes.

#ifndef TERNGRAD_CC_KERNELS_ADDENDS_H_
#define TERNGRAD_CC_KERNELS_ADDENDS_H_

#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {

// Reads the attribute `planes`.
inline absl::Status ReadPlanes(tensorflow::OpKernelConstruction* context,
                               int* planes) {
  TF_RETURN_IF_ERROR(context->GetAttr("planes", planes));
  if (*planes < 1 || *planes > kMaxPlanes) {
    return Invalid("planes is ", *planes, "; allowed are 1 to ", kMaxPlanes);
  }
  return absl::OkStatus();
}

// Reads the inputs `words`, of as many rows each.
inline absl::Status ReadWords(tensorflow::OpKernelContext* context,
                              std::vector<Planes>* inputs, int64_t* rows) {
  tensorflow::OpInputList words;
  TF_RETURN_IF_ERROR(context->input_list("words", &words));
  *rows = words[0].dims() == 2 ? words[0].dim_size(0) : -1;
  for (const tensorflow::Tensor& input : words) {
    if (input.dims() != 2 || input.dim_size(0) != *rows ||
        input.dim_size(1) < 1 || input.dim_size(1) > kMaxPlanes) {
      return Invalid("shape of words is ", input.shape().DebugString(),
                     "; allowed is [G, 1 to ", kMaxPlanes,
                     "] with the same G for all");
    }
    inputs->push_back(
        {input.flat<uint32_t>().data(), static_cast<int>(input.dim_size(1))});
  }
  return absl::OkStatus();
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_ADDENDS_H_
