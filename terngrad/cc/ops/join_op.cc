// Contract of the op between processes.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace terngrad {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status JoinShape(InferenceContext* c) {
  tensorflow::PartialTensorShape shape;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
  ShapeHandle output;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TerngradJoin")
    .Input("local: T")
    .Output("joined: T")
    .Attr("T: type")
    .Attr("mesh: int")
    .Attr("operation: int")
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn(JoinShape)
    .Doc(R"doc(
Joins the tensors of all processes of a mesh (terngrad/cc/net/mesh.h).

No thread waits for the others.

local: of this process, with as many bytes as the operation takes.
joined: what the operation gives.
mesh: number of the mesh; of one that is closed: an Unavailable error.
operation: index of the operation, which this process has declared.
shape: of `joined`, fully defined.
Another size or index is an InvalidArgument error. An Unavailable error names
the process that was lost.
)doc");

}  // namespace terngrad
