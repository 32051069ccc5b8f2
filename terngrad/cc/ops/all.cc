// The only compiled file: TensorFlow's headers take a compiler longer than all
// contracts.

#include "terngrad/cc/ops/join_op.cc"
#include "terngrad/cc/ops/ternary_ops.cc"
