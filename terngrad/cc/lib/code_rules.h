// The code of a value and what codes are worth, one value at a time: the
// definition that vectors and GPUs follow.

#ifndef TERNGRAD_CC_LIB_CODE_RULES_H_
#define TERNGRAD_CC_LIB_CODE_RULES_H_

#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/types.h"

namespace terngrad {

// The functions of this header are static: see philox.h.

TERNGRAD_DEVICE static inline float MagnitudeOf(float value) {
#ifdef __CUDACC__
  return fabsf(value);
#else
  return __builtin_fabsf(value);  // std::fabs may be shared code
#endif
}

// Returns the part of a value of a variable.
TERNGRAD_DEVICE static inline int64_t PartOf(const Parts& parts,
                                             int64_t value) {
  return (parts.first + value) / parts.block % parts.count;
}

// Returns t, the draws that a value is worth: see SourceEncoder. Denormal
// values and thresholds count as zero even if this thread does not flush them.
template <int MAX_CODE>
TERNGRAD_DEVICE static inline float ThresholdOf(float value, float bound,
                                                float rate) {
  const float size = MagnitudeOf(value);
  if (!(size >= kSmallestNormal)) return 0.0f;
  const float magnitude = size > bound ? bound : size;
  if (!(magnitude >= kSmallestNormal && rate > 0.0f)) return 0.0f;
  constexpr float kLargest = MAX_CODE * 0x1p24f;
  const float product = magnitude * (rate * 0x1p8f);
  return product > kLargest ? kLargest : product;
}

// Returns the draw of a value of so many bits, the complement if this is the
// antithetic one.
TERNGRAD_DEVICE static inline uint32_t DrawFor(const NodeKey& key,
                                               uint32_t draw, float value) {
  const bool is_odd = key.node & 1;
  return key.antithetic && is_odd != (value < 0.0f) ? draw ^ kLargestDraw
                                                    : draw;
}

// Returns whether a value of threshold t with this 24-bit draw has the larger
// one of the two codes around t / 2^24.
TERNGRAD_DEVICE static inline bool IsRoundedUp(float threshold, uint32_t draw) {
  const int whole = static_cast<int>(threshold * 0x1p-24f);
  const float rest = threshold - whole * 0x1p24f;
  return rest > static_cast<float>(draw) && rest > kSmallestNormal;
}

// Returns the key of a variable's draws.
TERNGRAD_DEVICE static inline DrawKey DrawKeyOf(const NodeKey& key,
                                                uint32_t variable) {
  return {key.seed, key.step, key.node >> int{key.antithetic} << 16 | variable};
}

// Returns the code of a value, `element` of its variable.
template <int MAX_CODE>
TERNGRAD_DEVICE static inline int RandomCodeOf(const NodeKey& key,
                                               uint32_t variable,
                                               uint64_t element, float value,
                                               float bound, float rate) {
  const float threshold = ThresholdOf<MAX_CODE>(value, bound, rate);
  const uint32_t draw = Draw(DrawKeyOf(key, variable), element);
  const int code = static_cast<int>(threshold * 0x1p-24f) +
                   IsRoundedUp(threshold, DrawFor(key, draw, value));
  return value < 0.0f ? -code : code;
}

// Returns the code next to a value: see NearestEncoder.
template <int MAX_CODE>
TERNGRAD_DEVICE static inline int NearestCodeOf(float value, float rate) {
  const float multiple = MagnitudeOf(value) * rate;
  int code = 0;
  for (int k = 1; k <= MAX_CODE; ++k) code += multiple > (2 * k - 1) * 0x1p15f;
  return value < 0.0f ? -code : code;
}

// Returns what a sum of 1 is worth, given what a code of 1 is.
TERNGRAD_DEVICE static inline float MeanUnitOf(float unit, float divisor) {
  return (unit >= kSmallestScale ? unit : 0.0f) / divisor;
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_CODE_RULES_H_
