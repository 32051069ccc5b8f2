// The kernel that adds codes.

#ifndef TERNGRAD_CC_GPU_SUM_H_
#define TERNGRAD_CC_GPU_SUM_H_

#include "terngrad/cc/gpu/warp.h"
#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/types.h"

namespace terngrad {
namespace gpu {

// Writes total[rows * planes], the sum of the inputs modulo 2^planes. A thread
// adds a row by carry logic. MAX_PLANES is the largest number of planes.
template <int MAX_PLANES>
TERNGRAD_DEVICE static inline void SumRow(const Planes* inputs, int64_t count,
                                          int planes, int64_t row,
                                          uint32_t* total) {
  uint32_t sum[MAX_PLANES] = {};
  for (int64_t i = 0; i < count; ++i) {
    const int own = inputs[i].planes;
    const uint32_t* const words = inputs[i].words + row * own;
    uint32_t word = 0, carry = 0;
#pragma unroll
    for (int j = 0; j < MAX_PLANES; ++j) {
      if (j >= planes) break;
      if (j < own) word = words[j];  // else the last one, of signs
      const uint32_t differ = sum[j] ^ word, both = sum[j] & word;
      sum[j] = differ ^ carry;
      carry = both | (differ & carry);
    }
  }
#pragma unroll
  for (int j = 0; j < MAX_PLANES; ++j) {
    if (j < planes) total[row * planes + j] = sum[j];
  }
}

TERNGRAD_DEVICE static inline void Sum(const Block& block, const Planes* inputs,
                                       int64_t count, int planes, int64_t rows,
                                       uint32_t* total) {
  block.ForThreads([&](int thread) {
    const int64_t row = block.index() * block.threads() + thread;
    if (row >= rows) return;
    if (planes <= 4) {
      SumRow<4>(inputs, count, planes, row, total);
    } else {
      SumRow<kMaxPlanes>(inputs, count, planes, row, total);
    }
  });
}

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_SUM_H_
