// The only compiled file, so that TensorFlow's headers, which take longer than
// all contracts, are compiled once.

#include "terngrad/cc/ops/join_op.cc"
#include "terngrad/cc/ops/ternary_ops.cc"
