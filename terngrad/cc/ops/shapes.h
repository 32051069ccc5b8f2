// Shape inference that several ops share.

#ifndef TERNGRAD_CC_OPS_SHAPES_H_
#define TERNGRAD_CC_OPS_SHAPES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "terngrad/cc/lib/kernels.h"

namespace terngrad {

// Words of a plane of so many elements.
inline int64_t WordsOf(int64_t elements) { return (elements + 31) / 32; }

// Finds the planes of codes of the attribute `encoder`.
inline absl::Status CodePlanes(
    tensorflow::shape_inference::InferenceContext* c,
    tensorflow::shape_inference::DimensionHandle* planes) {
  std::string name;
  TF_RETURN_IF_ERROR(c->GetAttr("encoder", &name));
  const Encoder* const encoder = FindEncoder(*PortableKernels(), name.c_str());
  if (!encoder) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no encoder ", name));
  }
  *planes = c->MakeDim(PlaneCount(encoder->max_code));
  return absl::OkStatus();
}

// Sets the shapes of n outputs to those in the attribute `shapes`.
inline absl::Status ShapesOfAttribute(
    tensorflow::shape_inference::InferenceContext* c) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("n", &n));
  if (static_cast<int>(shapes.size()) != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes has ", shapes.size(), " entries; n is ", n));
  }
  for (int i = 0; i < n; ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_OPS_SHAPES_H_
