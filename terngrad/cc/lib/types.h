// Shared by the kernels for CPUs and those for GPUs.

#ifndef TERNGRAD_CC_LIB_TYPES_H_
#define TERNGRAD_CC_LIB_TYPES_H_

#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/inverse.h"

namespace terngrad {

inline constexpr int kWordBits = 32;      // elements in a word
inline constexpr int kMaxSum = 65536;     // largest magnitude of a sum
inline constexpr int kMaxPlanes = 18;     // of such sums
inline constexpr int kStatsBlock = 4096;  // maximum of values per call of stats
inline constexpr int kStatsRows =
    64;  // maximum of rows per call of column_stats
inline constexpr int kPartsPadding = 15;  // see Parts
inline constexpr int64_t kStreamedSize =
    1 << 22;  // values of a target that no cache holds until they are used
inline constexpr float kSmallestNormal = 0x1p-126f;
inline constexpr float kSmallestScale =
    0x1p-100f;  // smaller values of a code of 1 count as 0

// Statistics of up to kStatsBlock values. Callers add the sums of blocks in the
// order of the blocks, so results do not depend on threads.
struct BlockStats {
  double sum;
  double sum_of_squares;
  uint32_t max_bits;  // largest bits of |x|; above infinity's if x has a NaN
};

// The parts of a variable (terngrad/parts.py): value e belongs to part
// ((first + e) / block) % count.
struct Parts {
  int64_t block = 1;
  int64_t count = 1;
  int64_t first = 0;
};

// Returns whether neighbours belong to different parts, such as output
// channels. Vectors read the numbers of such parts from any of them on: an
// array of them repeats the first kPartsPadding ones at its end.
TERNGRAD_DEVICE static inline bool IsPeriodic(const Parts& parts) {
  return parts.block == 1 && parts.count > 1;
}

// Returns the length of an array of the parts' numbers.
TERNGRAD_DEVICE static inline int64_t PaddedCount(const Parts& parts) {
  return parts.count + (IsPeriodic(parts) ? kPartsPadding : 0);
}

// Returns 2^16 / unit, unit being the value of a code of 1 where `scale` is
// that of the largest code; 0 if all codes are 0, because the unit is too small
// or not finite.
TERNGRAD_DEVICE static inline float RateOf(float scale, int max_code) {
  const float unit = scale * (1.0f / max_code);
  const bool is_usable = unit >= kSmallestScale && unit <= 0x1.fffffep127f;
  return is_usable ? InverseOf(unit) : 0.0f;
}

// Codes, or sums of codes, of a whole bucket.
struct Planes {
  const uint32_t* words;
  int planes;
};

// The seed, step and node of the draws.
struct NodeKey {
  uint64_t seed;
  uint32_t step;
  uint32_t node;    // < 2^16
  bool antithetic;  // nodes 2 k and 2 k + 1 share draws (terngrad/draws.py)
};

// Returns the number of planes of integers up to `largest` in magnitude.
TERNGRAD_DEVICE static constexpr int PlaneCount(int64_t largest) {
  int planes = 0;
  for (int64_t left = 2 * largest; left > 0; left /= 2) ++planes;
  return planes;
}

// How a mean gradient g changes a weight w and its slots v, or m and s, or s
// and v.
enum class Rule {
  kMomentum,       // v = momentum v + g; w = w - rate v
  kKerasMomentum,  // v = momentum v - rate g; w = w + v
  kNesterov,       // v = momentum v - rate g; w = w + (momentum v - rate g)
  kAdam,     // m = m + (g - m) mean_share; s = s + (g g - s) square_share;
             // w = w - m rate / (sqrt(s) + epsilon)
  kRmsProp,  // s = s + (g g - s) square_share;
             // v = momentum v + g rate / sqrt(s + epsilon); w = w - v
};

TERNGRAD_DEVICE static constexpr int SlotCount(Rule rule) {
  return rule == Rule::kAdam || rule == Rule::kRmsProp ? 2 : 1;
}

struct Update {
  Rule rule;
  float rate;
  float momentum;
  float mean_share;
  float square_share;
  float epsilon;
  float gain;  // an average a becomes (a + gain w) / (1 + gain), w updated
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TYPES_H_
