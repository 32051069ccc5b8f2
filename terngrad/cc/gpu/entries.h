// The entry points of kernels.cu: their names, arguments and grids.
//
// `rows` counts the words of each plane of a bucket, that is its elements / 32
// rounded up. All grids have one dimension; where one would have no block,
// nothing is launched. No kernel takes dynamic shared memory.
//
// Those of a bucket run in BlocksOf(rows, kBlockRows) blocks of kThreads:
//
//   terngrad_encode_L, terngrad_nearest_L (EntryOfEncoder)
//     (const Source* sources, int64_t count, NodeKey key, int64_t rows,
//      uint32_t* words)                      words[rows * PlaneCount(L)]
//   terngrad_decode
//     (Planes sums, const Target* targets, int64_t count, UnitRule units,
//      int64_t rows)
//   terngrad_subtract
//     (Planes codes, const Kept* variables, int64_t count, UnitRule units,
//      int64_t rows)                         also sets residuals to 0 where a
//                                            unit is infinite
//   terngrad_update_RULE (EntryOfRule)
//     (Planes sums, const Trained* variables, int64_t count, Update update,
//      UnitRule units, int64_t rows)
//   terngrad_correct
//     (const Corrected* variables, int64_t count, int64_t rows)
//
// The sum of planes runs in BlocksOf(rows, kThreads) blocks of kThreads:
//
//   terngrad_sum
//     (const Planes* inputs, int64_t count, int planes, int64_t rows,
//      uint32_t* total)                      total[rows * planes]
//
// Statistics take two launches:
//
//   terngrad_measure                         the sum of PieceBlocks blocks of
//     (const Measured* variables, int64_t count)                 kPieceThreads
//   terngrad_total                           the sum of TotalBlocks blocks of
//     (const Measured* variables, int64_t count,                 kTotalThreads
//      float* sums, float* squares, float* max_abs)
//
// `count` is 1 or more. The tables and `inputs` are in device memory; structs
// of other arguments are passed by value.

#ifndef TERNGRAD_CC_GPU_ENTRIES_H_
#define TERNGRAD_CC_GPU_ENTRIES_H_

#include <cstring>

#include "terngrad/cc/lib/types.h"

namespace terngrad {
namespace gpu {

// Returns the entry of an encoder (terngrad/ternary.py); null if its name is
// unknown.
static inline const char* EntryOfEncoder(const char* name) {
  constexpr const char* kEntries[][2] = {
      {"ternary", "terngrad_encode_1"},
      {"5-level", "terngrad_encode_2"},
      {"7-level", "terngrad_encode_3"},
      {"15-level", "terngrad_encode_7"},
      {"255-level", "terngrad_encode_127"},
      {"ternary-feedback", "terngrad_nearest_1"},
      {"5-level-feedback", "terngrad_nearest_2"}};
  for (const auto& entry : kEntries) {
    if (!std::strcmp(name, entry[0])) return entry[1];
  }
  return nullptr;
}

static inline const char* EntryOfRule(Rule rule) {
  switch (rule) {
    case Rule::kKerasMomentum:
      return "terngrad_update_keras_momentum";
    case Rule::kNesterov:
      return "terngrad_update_nesterov";
    case Rule::kAdam:
      return "terngrad_update_adam";
    case Rule::kRmsProp:
      return "terngrad_update_rmsprop";
    default:
      return "terngrad_update_momentum";
  }
}

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_ENTRIES_H_
