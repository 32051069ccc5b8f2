// The only compiled file: TensorFlow's headers take a compiler longer than all
// kernels.

#define EIGEN_USE_THREADS  // for update_kernel.cc: before any header of Eigen's

#include "terngrad/cc/kernels/decode_kernel.cc"
#include "terngrad/cc/kernels/encode_kernel.cc"
#include "terngrad/cc/kernels/gpu_codes_kernel.cc"
#include "terngrad/cc/kernels/gpu_means_kernel.cc"
#include "terngrad/cc/kernels/join_kernel.cc"
#include "terngrad/cc/kernels/stats_kernel.cc"
#include "terngrad/cc/kernels/subtract_kernel.cc"
#include "terngrad/cc/kernels/sum_kernel.cc"
#include "terngrad/cc/kernels/update_kernel.cc"
