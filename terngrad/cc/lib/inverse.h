// Division of a constant, which GPUs do once for each value of a channel.

#ifndef TERNGRAD_CC_LIB_INVERSE_H_
#define TERNGRAD_CC_LIB_INVERSE_H_

#include "terngrad/cc/lib/device.h"

namespace terngrad {

// Returns a b + c, rounded once.
TERNGRAD_DEVICE static inline float MultiplyAdd(float a, float b, float c) {
#ifdef __CUDACC__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// Returns 2^16 / x, rounded, given 1 / x but for some last bits;
// 2^-100 <= x <= 2^64.
TERNGRAD_DEVICE static inline float CorrectedInverse(float x, float inverse) {
  const float error = MultiplyAdd(-x, inverse, 1.0f);
  const float closer = MultiplyAdd(inverse, error, inverse);
  const float quotient = closer * 0x1p16f;
  const float rest = MultiplyAdd(-x, quotient, 0x1p16f);
  const float rounded = MultiplyAdd(closer, rest, quotient);
  // With all bits of the fraction set, the inverse lies so near the middle of
  // two numbers that `closer` may be the wrong one. The right one is odd.
  constexpr uint32_t kFraction = 0x7FFFFF;
#ifdef __CUDACC__
  const bool is_close = (__float_as_uint(x) & kFraction) == kFraction;
  return is_close ? __uint_as_float(__float_as_uint(rounded) | 1) : rounded;
#else
  uint32_t bits, result;
  std::memcpy(&bits, &x, sizeof(bits));
  std::memcpy(&result, &rounded, sizeof(result));
  if ((bits & kFraction) == kFraction) result |= 1;
  float odd;
  std::memcpy(&odd, &result, sizeof(odd));
  return odd;
#endif
}

// Returns 2^16 / x, rounded; 2^-100 <= x < infinity.
TERNGRAD_DEVICE static inline float InverseOf(float x) {
#ifdef __CUDACC__  // a division has a branch to a function for special cases
  // Inverses of larger numbers are denormal. Powers of 2 change no bits.
  const bool is_large = x > 0x1p64f;
  const float divisor = is_large ? x * 0x1p-32f : x;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  inverse = CorrectedInverse(divisor, inverse);
  return is_large ? inverse * 0x1p-32f : inverse;
#else
  return 0x1p16f / x;
#endif
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_INVERSE_H_
