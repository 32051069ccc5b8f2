// Contracts of the native ops. Layouts of words: terngrad/planes.py.

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "terngrad/cc/ops/shapes.h"

namespace terngrad {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The last three outputs are statistics of the parts of the first `n` inputs;
// outputs before them have these inputs' shapes.
absl::Status StatsShape(InferenceContext* c) {
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("n", &n));
  std::vector<int64_t> parts;
  TF_RETURN_IF_ERROR(c->GetAttr("parts", &parts));
  int64_t total = parts.empty() ? n : 0;
  for (size_t i = 1; i < parts.size(); i += 3) total += parts[i];
  const int values = c->num_outputs() - 3;
  for (int i = 0; i < values; ++i) c->set_output(i, c->input(i));
  for (int i = 0; i < 3; ++i) c->set_output(values + i, c->Vector(total));
  return absl::OkStatus();
}

absl::Status SubtractShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Words of all elements of the first `n` inputs, if their sizes are known.
absl::Status EncodeShape(InferenceContext* c) {
  int n;
  TF_RETURN_IF_ERROR(c->GetAttr("n", &n));
  int64_t elements = 0;
  bool known = true;
  for (int i = 0; i < n; ++i) {
    const DimensionHandle size = c->NumElements(c->input(i));
    known = known && c->ValueKnown(size);
    if (known) elements += c->Value(size);
  }
  const DimensionHandle rows =
      known ? c->MakeDim(WordsOf(elements)) : c->UnknownDim();
  DimensionHandle planes;
  TF_RETURN_IF_ERROR(CodePlanes(c, &planes));
  c->set_output(0, c->Matrix(rows, planes));
  return absl::OkStatus();
}

absl::Status SumShape(InferenceContext* c) {
  int planes;
  TF_RETURN_IF_ERROR(c->GetAttr("planes", &planes));
  DimensionHandle rows = c->UnknownDim();
  for (int i = 0; i < c->num_inputs(); ++i) {
    ShapeHandle words;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 2, &words));
    TF_RETURN_IF_ERROR(c->Merge(rows, c->Dim(words, 0), &rows));
  }
  c->set_output(0, c->Matrix(rows, planes));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TerngradStats")
    .Input("gradients: n * float")
    .Output("sum: float")
    .Output("sum_of_squares: float")
    .Output("max_abs: float")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("path: string = ''")
    .SetShapeFn(StatsShape)
    .Doc(R"doc(
Statistics of the p parts of n tensors of any shape, in one pass.

The order of the additions is fixed: results do not depend on threads or path.

sum: [p], in the order of the tensors.
sum_of_squares: [p].
max_abs: [p], largest magnitude; NaN if there is a NaN, 0 if it is denormal or
  the part is empty.
parts: block, count and first of each tensor (terngrad/parts.py); empty = each
  is one part. Here first is 0.
path: avx512, avx2 or portable; empty = the fastest that this processor
  supports. Unknown paths are InvalidArgument errors. gpu = on a GPU.
)doc");

REGISTER_OP("TerngradCorrect")
    .Input("gradients: n * float")
    .Input("memory: n * float")
    .Output("corrected: n * float")
    .Output("sum: float")
    .Output("sum_of_squares: float")
    .Output("max_abs: float")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("path: string = ''")
    .SetShapeFn(StatsShape)
    .Doc(R"doc(
gradients + memory, and what TerngradStats says of it: in one pass on CPUs, in
two on GPUs.

gradients: of any shape; their memory is taken for the output if nobody else
  needs them.
memory: in their shapes.
corrected: the sums.
sum, sum_of_squares, max_abs, parts, path: as for TerngradStats.
Other shapes or values are InvalidArgument errors.
)doc");

REGISTER_OP("TerngradEncode")
    .Input("gradients: n * float")
    .Input("bounds: float")
    .Input("scales: float")
    .Input("seed: uint64")
    .Input("step: int64")
    .Input("node: int32")
    .Output("words: uint32")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("variables: list(int)")
    .Attr("encoder: string = 'ternary'")
    .Attr("antithetic: bool = false")
    .Attr("path: string = ''")
    .SetShapeFn(EncodeShape)
    .Doc(R"doc(
Codes of a bucket: clip, draw, pack. M is the sum of the inputs' sizes.

Codes of an encoder lie in [-L, L]: ternary has L = 1, 5-level 2, 7-level 3,
15-level 7, 255-level 127. A code of 1 in a part of a variable is worth
u = fl(scale * fl(1 / L)). Element e of variable v, x, has
t = min(fl(min(|x|, bound) * fl(2^24 / u)), L 2^24) and the 24-bit draw r of
(seed, step, node, v, e) (terngrad/draws.py). Its code is
sign(x) (floor(t / 2^24) + [float(r) < t mod 2^24]). Denormal x and t count as
0. All codes of a part are 0 if u is below 2^-100 or not finite.

ternary-feedback has L = 1, 5-level-feedback 2. They round to the next
level, and the code is sign(x) times the number of k in [1, L] for which
fl(|x| * fl(2^16 / u)) > (k - 1/2) 2^16. They need neither bounds nor draws.

gradients: the variables of the bucket in its order, of any shape.
bounds: [p], for each of the variables' parts the magnitude to clip to; infinity
  = no clipping.
scales: [p].
seed, step, node: scalars; only the low 32 bits of step are used;
  0 <= node < 2^16.
words: [ceil(M / 32), k], bit planes, k = ceil(log2(2 L + 1)); ternary: k = 2,
  "nonzero" and "negative".
variables: index of each variable in the layout, 0 <= v < 2^16.
parts: as for TerngradStats; first may be more.
encoder: a row of kEncodersOf (terngrad/cc/lib/encode_impl.h).
antithetic: nodes 2 k and 2 k + 1 share the draws of key node k, r; the draw is
  2^24 - 1 - r where (node is odd) xor (x < 0).
path: as for TerngradStats.
Other shapes or values are InvalidArgument errors.
)doc");

REGISTER_OP("TerngradSum")
    .Input("words: n * uint32")
    .Output("total: uint32")
    .Attr("n: int >= 1")
    .Attr("planes: int")
    .Attr("path: string = ''")
    .SetShapeFn(SumShape)
    .Doc(R"doc(
Sum of n buckets of integers in bit planes, modulo 2^planes.

words: each [G, k], two's complement; 1 <= k <= 18 may differ between inputs.
total: [G, planes].
planes: 1 to 18.
path: as for TerngradStats.
Other shapes or values are InvalidArgument errors.
)doc");

REGISTER_OP("TerngradDecode")
    .Input("words: uint32")
    .Input("units: float")
    .Input("nodes: int32")
    .Output("means: n * float")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("shapes: list(shape)")
    .Attr("path: string = ''")
    .SetShapeFn(ShapesOfAttribute)
    .Doc(R"doc(
Mean gradients from the sums of a bucket: fl(fl(unit / nodes) * sum).

words: [ceil(M / 32), k], two's complement, 1 <= k <= 18; M is the sum of the
  outputs' sizes.
units: [p], of a code of 1 in each part; those below 2^-100 count as 0.
nodes: scalar >= 1, number of nodes in the sums.
means: the variables of the bucket in its order.
shapes: shapes of the outputs.
parts: as for TerngradStats; first may be more.
path: as for TerngradStats.
Other shapes or values are InvalidArgument errors.
)doc");

REGISTER_OP("TerngradSubtract")
    .Input("values: n * float")
    .Input("words: uint32")
    .Input("units: float")
    .Output("residuals: n * float")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("path: string = ''")
    .SetShapeFn(SubtractShape)
    .Doc(R"doc(
The rounding errors of a bucket: fl(value - fl(unit * code)); 0 where a unit is
infinite.

values: the variables of the bucket in its order, of any shape; their memory is
  taken for the output if nobody else needs them.
words, units, parts, path: as for TerngradDecode.
Other shapes or values are InvalidArgument errors.
)doc");

REGISTER_OP("TerngradUpdate")
    .Input("words: uint32")
    .Input("units: float")
    .Input("nodes: int32")
    .Input("rate: float")
    .Input("gain: float")
    .Input("weights: n * resource")
    .Input("slots: slot_count * resource")
    .Input("averages: average_count * resource")
    .Attr("n: int >= 1")
    .Attr("parts: list(int) = []")
    .Attr("slot_count: int >= 1")
    .Attr("average_count: int >= 0")
    .Attr("rule: {'momentum', 'keras_momentum', 'nesterov', 'adam', 'rmsprop'}")
    .Attr("momentum: float = 0.0")
    .Attr("mean_share: float = 0.0")
    .Attr("square_share: float = 0.0")
    .Attr("epsilon: float = 0.0")
    .Attr("path: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc(R"doc(
TerngradDecode, then an update with each mean, in one pass over the memory of
weights, slots and moving averages, and none for the means.

The rules, each operation of which rounds, are those of kernels.h and on CPUs
give the bits of ResourceApplyMomentum, ResourceApplyKerasMomentum without and with
Nesterov's step, ResourceApplyAdam and ResourceApplyRMSProp. An average a of a
weight w then becomes (a + gain w) / (1 + gain), the bits of
ResourceApplyProximalGradientDescent with l1 = 0, l2 = -1 and alpha = -gain.

words, units, nodes, parts, path: as for TerngradDecode.
rate: scalar, the learning rate; for adam with the corrections of its bias.
gain: scalar, the weight of the weights in their averages.
weights: float variables of the bucket in its order.
slots: of the weights, in their shapes: the first slot of all, then the second
  one if the rule has two: velocities, or means and mean squares (adam), or mean
  squares and velocities (rmsprop).
averages: of the weights, in their shapes; may be none.
momentum: share of a velocity that is kept.
mean_share, square_share: by which a mean or a mean square moves. TensorFlow's
  kernels take 1 - beta of the float32 beta, Keras rounds the exact difference.
epsilon: is added to divisors.
Other shapes or values are InvalidArgument errors.
)doc");

}  // namespace terngrad
