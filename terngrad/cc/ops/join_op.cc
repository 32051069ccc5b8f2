// Contracts of the ops that exchange tensors between processes.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "terngrad/cc/ops/shapes.h"

namespace terngrad {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status JoinShape(InferenceContext* c) {
  tensorflow::PartialTensorShape shape;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
  ShapeHandle output;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &output));
  c->set_output(0, output);
  c->set_output(1, c->Vector(2));
  return absl::OkStatus();
}

absl::Status EncodeJoinShape(InferenceContext* c) {
  DimensionHandle planes;
  TF_RETURN_IF_ERROR(CodePlanes(c, &planes));
  c->set_output(0, c->Matrix(c->UnknownDim(), planes));
  c->set_output(1, c->Matrix(c->UnknownDim(), c->UnknownDim()));
  c->set_output(2, c->Vector(2));
  return absl::OkStatus();
}

absl::Status JoinMeansShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ShapesOfAttribute(c));
  c->set_output(c->num_outputs() - 1, c->Vector(2));
  return absl::OkStatus();
}

absl::Status EncodeJoinMeansShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(ShapesOfAttribute(c));
  std::vector<tensorflow::TensorShape> shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  int64_t elements = 0;
  for (const auto& shape : shapes) elements += shape.num_elements();
  DimensionHandle planes;
  TF_RETURN_IF_ERROR(CodePlanes(c, &planes));
  c->set_output(c->num_outputs() - 2,
                c->Matrix(c->MakeDim(WordsOf(elements)), planes));
  c->set_output(c->num_outputs() - 1, c->Vector(2));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TerngradJoin")
    .Input("local: T")
    .Output("joined: T")
    .Output("octets: int64")
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
octets: bytes of payloads that this process has sent and received for it.
mesh: number of the mesh; of one that is closed: an Unavailable error.
operation: index of the operation, which this process has declared.
shape: of `joined`; the first size may be -1, as many rows as the operation
  gives among the processes of the present mesh.
Another size or index is an InvalidArgument error. An Unavailable error names
the process that was lost.
)doc");

REGISTER_OP("TerngradEncodeJoin")
    .Input("gradients: n * float")
    .Input("bounds: float")
    .Input("scales: float")
    .Input("seed: uint64")
    .Input("step: int64")
    .Input("node: int32")
    .Output("codes: uint32")
    .Output("sums: uint32")
    .Output("octets: int64")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("variables: list(int)")
    .Attr("encoder: string = 'ternary'")
    .Attr("antithetic: bool = false")
    .Attr("mesh: int")
    .Attr("operation: int")
    .SetIsStateful()
    .SetShapeFn(EncodeJoinShape)
    .Doc(R"doc(
TerngradEncode, then TerngradJoin: parts of the codes are sent while others are
still being encoded.

gradients, bounds, scales, seed, step, node, variables, parts, encoder,
  antithetic: as for TerngradEncode.
codes: the words of TerngradEncode, by the path that the operation was declared
  with.
sums: what the operation gives: uint32 [G, k].
mesh, operation, octets: as for TerngradJoin; it adds codes.
Errors are those of both.
)doc");

REGISTER_OP("TerngradJoinMeans")
    .Input("local: uint32")
    .Input("units: float")
    .Input("nodes: int32")
    .Output("means: n * float")
    .Output("octets: int64")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("mesh: int")
    .Attr("operation: int")
    .Attr("shapes: list(shape)")
    .SetIsStateful()
    .SetShapeFn(JoinMeansShape)
    .Doc(R"doc(
TerngradJoin of codes, then TerngradDecode: parts of the sum are decoded while
others are still on their way.

local, mesh, operation, octets: as for TerngradJoin; it adds codes.
units, nodes, means, parts, shapes: as for TerngradDecode.
Errors are those of both.
)doc");

REGISTER_OP("TerngradEncodeJoinMeans")
    .Input("gradients: n * float")
    .Input("bounds: float")
    .Input("scales: float")
    .Input("seed: uint64")
    .Input("step: int64")
    .Input("node: int32")
    .Input("units: float")
    .Input("nodes: int32")
    .Output("means: n * float")
    .Output("codes: uint32")
    .Output("octets: int64")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("variables: list(int)")
    .Attr("encoder: string = 'ternary'")
    .Attr("antithetic: bool = false")
    .Attr("mesh: int")
    .Attr("operation: int")
    .Attr("shapes: list(shape)")
    .SetIsStateful()
    .SetShapeFn(EncodeJoinMeansShape)
    .Doc(R"doc(
TerngradEncode, then TerngradJoinMeans: parts of the codes are sent while others
are still being encoded.

gradients, bounds, scales, seed, step, node, variables, parts, encoder,
  antithetic: as for TerngradEncode.
codes: the words of TerngradEncode, by the path that the operation was declared
  with.
units, nodes, mesh, operation, means, octets, shapes: as for TerngradJoinMeans.
Errors are those of both.
)doc");

}  // namespace terngrad
