// The entry points of the kernels for GPUs: see entries.h. NVRTC compiles this
// file for a card when it is first used.

#include "terngrad/cc/gpu/encode.h"
#include "terngrad/cc/gpu/means.h"
#include "terngrad/cc/gpu/statistics.h"
#include "terngrad/cc/gpu/sum.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/warp.h"

namespace gpu = terngrad::gpu;
using terngrad::NodeKey;
using terngrad::Planes;
using terngrad::Rule;
using terngrad::Update;

// An encoder of a bucket.
#define TERNGRAD_ENCODER(name, Encoder)                                        \
  extern "C" __global__ void __launch_bounds__(gpu::kThreads, 4)               \
      name(const gpu::Source* sources, int64_t count, NodeKey key,             \
           int64_t rows, uint32_t* words) {                                    \
    gpu::Encode<gpu::Encoder>(gpu::Block(), sources, count, key, rows, words); \
  }

TERNGRAD_ENCODER(terngrad_encode_1, RandomEncoder<1>)
TERNGRAD_ENCODER(terngrad_encode_2, RandomEncoder<2>)
TERNGRAD_ENCODER(terngrad_encode_3, RandomEncoder<3>)
TERNGRAD_ENCODER(terngrad_encode_7, RandomEncoder<7>)
TERNGRAD_ENCODER(terngrad_encode_127, RandomEncoder<127>)
TERNGRAD_ENCODER(terngrad_nearest_1, NearestLevelEncoder<1>)
TERNGRAD_ENCODER(terngrad_nearest_2, NearestLevelEncoder<2>)

extern "C" __global__ void __launch_bounds__(gpu::kThreads, 4)
    terngrad_sum(const Planes* inputs, int64_t count, int planes, int64_t rows,
                 uint32_t* total) {
  gpu::Sum(gpu::Block(), inputs, count, planes, rows, total);
}

extern "C" __global__ void __launch_bounds__(gpu::kThreads, 4)
    terngrad_decode(Planes sums, const gpu::Target* targets, int64_t count,
                    gpu::UnitRule units, int64_t rows) {
  gpu::Decode(gpu::Block(), sums, targets, count, units, rows);
}

extern "C" __global__ void __launch_bounds__(gpu::kThreads, 4)
    terngrad_subtract(Planes codes, const gpu::Kept* variables, int64_t count,
                      gpu::UnitRule units, int64_t rows) {
  gpu::Subtract(gpu::Block(), codes, variables, count, units, rows);
}

#define TERNGRAD_UPDATE(name, rule)                                          \
  extern "C" __global__ void __launch_bounds__(gpu::kThreads, 3)             \
      name(Planes sums, const gpu::Trained* variables, int64_t count,        \
           Update update, gpu::UnitRule units, int64_t rows) {               \
    gpu::UpdateVariables<rule>(gpu::Block(), sums, variables, count, update, \
                               units, rows);                                 \
  }

TERNGRAD_UPDATE(terngrad_update_momentum, Rule::kMomentum)
TERNGRAD_UPDATE(terngrad_update_keras_momentum, Rule::kKerasMomentum)
TERNGRAD_UPDATE(terngrad_update_nesterov, Rule::kNesterov)
TERNGRAD_UPDATE(terngrad_update_adam, Rule::kAdam)
TERNGRAD_UPDATE(terngrad_update_rmsprop, Rule::kRmsProp)

extern "C" __global__ void __launch_bounds__(gpu::kPieceThreads)
    terngrad_measure(const gpu::Measured* variables, int64_t count) {
  gpu::Measure(gpu::Block(), variables, count);
}

extern "C" __global__ void __launch_bounds__(gpu::kTotalThreads)
    terngrad_total(const gpu::Measured* variables, int64_t count, float* sums,
                   float* squares, float* max_abs) {
  gpu::Total(gpu::Block(), variables, count, sums, squares, max_abs);
}

extern "C" __global__ void __launch_bounds__(gpu::kThreads, 4)
    terngrad_correct(const gpu::Corrected* variables, int64_t count,
                     int64_t rows) {
  gpu::Correct(gpu::Block(), variables, count, rows);
}
