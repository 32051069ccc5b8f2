// Numbers of one thread.

#ifndef TERNGRAD_CC_GPU_SCALARS_H_
#define TERNGRAD_CC_GPU_SCALARS_H_

#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/lib/device.h"

namespace terngrad {
namespace gpu {

TERNGRAD_DEVICE static inline float FloatOf(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

TERNGRAD_DEVICE static inline uint32_t BitsOf(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

// Returns x >= 0 rounded down; 0 for NaN, the largest integer for larger x.
TERNGRAD_DEVICE static inline uint32_t RoundedDown(float x) {
#ifdef __CUDACC__
  return __float2uint_rz(x);
#else
  if (!(x > 0.0f)) return 0;
  return x < 0x1p32f ? static_cast<uint32_t>(x) : ~uint32_t{0};
#endif
}

// Returns a float16 number, whose bits are given.
TERNGRAD_DEVICE static inline float FloatOfHalf(uint16_t half) {
#ifdef __CUDACC__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
#else
  constexpr uint32_t kExponent = 0x1F, kFractionBits = 10;
  const uint32_t sign = uint32_t{half} >> 15 << 31;
  const uint32_t exponent = half >> kFractionBits & kExponent;
  const uint32_t fraction = half & ((1u << kFractionBits) - 1);
  const uint32_t shifted = fraction << (23 - kFractionBits);
  if (exponent == kExponent) return FloatOf(sign | 0x7F800000 | shifted);
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * fraction;
  return FloatOf(sign | (exponent + 127 - 15) << 23 | shifted);
#endif
}

TERNGRAD_DEVICE static inline float FloatOfBfloat(uint16_t bfloat) {
  return FloatOf(uint32_t{bfloat} << 16);
}

// Writes values first + step i, i < COUNT, as float32 numbers.
template <int COUNT>
TERNGRAD_DEVICE static inline void Load(const void* values, ValueType type,
                                        int64_t first, int64_t step,
                                        float (&x)[COUNT]) {
  if (type == ValueType::kFloat32) {
    const float* const from = static_cast<const float*>(values) + first;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = from[i * step];
    return;
  }
  const uint16_t* const from = static_cast<const uint16_t*>(values) + first;
  uint16_t bits[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) bits[i] = from[i * step];
  const bool is_half = type == ValueType::kFloat16;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    x[i] = is_half ? FloatOfHalf(bits[i]) : FloatOfBfloat(bits[i]);
  }
}

TERNGRAD_DEVICE static inline float Load(const void* values, ValueType type,
                                         int64_t i) {
  float x[1];
  Load(values, type, i, 1, x);
  return x[0];
}

// The lanes of update_rules.h: one. Nothing is contracted, whatever the
// compiler's options are.
struct OneLane {
  using Floats = float;

  TERNGRAD_DEVICE static float Broadcast(float x) { return x; }
#ifdef __CUDACC__
  __device__ static float Add(float a, float b) { return __fadd_rn(a, b); }
  __device__ static float Subtract(float a, float b) { return __fsub_rn(a, b); }
  __device__ static float Multiply(float a, float b) { return __fmul_rn(a, b); }
  __device__ static float Divide(float a, float b) { return __fdiv_rn(a, b); }
  __device__ static float SquareRoot(float x) { return __fsqrt_rn(x); }
#else
  static float Add(float a, float b) { return a + b; }
  static float Subtract(float a, float b) { return a - b; }
  static float Multiply(float a, float b) { return a * b; }
  static float Divide(float a, float b) { return a / b; }
  static float SquareRoot(float x) { return __builtin_sqrtf(x); }
#endif
};

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_SCALARS_H_
