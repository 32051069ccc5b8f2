// The kernels, written once for 16 lanes. A file for each instruction set
// defines the lanes (simd/) and instantiates the table at the end.
//
// Everything is static or a template of the lanes: the linker must not replace
// code by a copy that was compiled for another instruction set.

#ifndef TERNGRAD_CC_LIB_KERNELS_IMPL_H_
#define TERNGRAD_CC_LIB_KERNELS_IMPL_H_

#include <cstdint>

#include "terngrad/cc/lib/codes/prefix_code_impl.h"
#include "terngrad/cc/lib/decode_impl.h"
#include "terngrad/cc/lib/encode_impl.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/ranges_impl.h"
#include "terngrad/cc/lib/stats_impl.h"
#include "terngrad/cc/lib/sum_impl.h"
#include "terngrad/cc/lib/update_impl.h"

namespace terngrad {

// Writes a + b: gradients and what a codec kept of earlier ones.
template <class Lanes>
void Add(const float* a, const float* b, int64_t count, float* sums) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Prefetch(a + i, kLanes);
    Prefetch(b + i, kLanes);
    Lanes::Store(sums + i, Lanes::Add(Lanes::Load(a + i), Lanes::Load(b + i)));
  }
  for (; i < count; ++i) sums[i] = a[i] + b[i];
}

// The table for an instruction set.
template <class Lanes>
inline constexpr Kernels kKernelsOf = {
    Lanes::kPath,      StatsKernel<Lanes>::Run, ColumnStatsKernel<Lanes>::Run,
    Add<Lanes>,        kEncodersOf<Lanes>,      SumKernel<Lanes>::Run,
    Decode<Lanes>,     Subtract<Lanes>,         UpdateKernel<Lanes>::Run,
    PackPrefix<Lanes>, UnpackPrefix<Lanes>};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_KERNELS_IMPL_H_
