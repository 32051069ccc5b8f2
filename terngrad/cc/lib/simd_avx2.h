// Sixteen lanes in two AVX2 registers.

#ifndef TERNGRAD_CC_LIB_SIMD_AVX2_H_
#define TERNGRAD_CC_LIB_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace terngrad {

struct Avx2Lanes {
  static constexpr const char* kPath = "avx2";

  struct Floats {
    __m256 low, high;
  };
  struct Words {
    __m256i low, high;
  };
  // Words of 64-bit lanes; the upper halves are not part of the value. Lanes
  // 0 to 7 are in the first two registers, the even ones in the first.
  struct Wide {
    __m256i part[4];
  };

  static Floats Load(const float* values) {
    return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
  }
  static void Store(float* values, Floats x) {
    _mm256_storeu_ps(values, x.low);
    _mm256_storeu_ps(values + 8, x.high);
  }
  static void StoreWords(uint32_t* words, Words x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), x.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8), x.high);
  }
  static Floats Broadcast(float value) {
    return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
  }
  static Floats Add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats Multiply(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  // b where a or b is NaN.
  static Floats Min(Floats a, Floats b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Floats Magnitude(Floats x) {
    const Words bits = MagnitudeBits(x);
    return {_mm256_castsi256_ps(bits.low), _mm256_castsi256_ps(bits.high)};
  }

  static uint32_t Greater(Floats a, Floats b) {
    return SignBits({_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ),
                     _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ)});
  }
  static uint32_t GreaterOrEqual(Floats a, Floats b) {
    return SignBits({_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ),
                     _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ)});
  }
  static uint32_t SignBits(Floats x) {
    return static_cast<uint32_t>(_mm256_movemask_ps(x.low)) |
           static_cast<uint32_t>(_mm256_movemask_ps(x.high)) << 8;
  }

  static Words Zeros() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }
  static Words MagnitudeBits(Floats x) {
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    return {_mm256_and_si256(_mm256_castps_si256(x.low), mask),
            _mm256_and_si256(_mm256_castps_si256(x.high), mask)};
  }
  static Words Max(Words a, Words b) {
    return {_mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high)};
  }
  // x | weight in the lanes of the lowest 16 bits of `lanes`.
  static Words OrWhere(Words x, uint32_t lanes, uint32_t weight) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(lanes));
    const __m256i low = _mm256_set_epi32(1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3,
                                         1 << 2, 1 << 1, 1 << 0);
    const __m256i high = _mm256_slli_epi32(low, 8);
    const __m256i w = _mm256_set1_epi32(static_cast<int>(weight));
    const auto pick = [&](__m256i bit) {
      return _mm256_and_si256(
          _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit), w);
    };
    return {_mm256_or_si256(x.low, pick(low)),
            _mm256_or_si256(x.high, pick(high))};
  }
  static Floats ToFloats(Words x) {
    return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
  }
  static Floats LowHalves(Words x) {
    const __m256i mask = _mm256_set1_epi32(0xFFFF);
    return ToFloats(
        {_mm256_and_si256(x.low, mask), _mm256_and_si256(x.high, mask)});
  }
  static Floats HighHalves(Words x) {
    return ToFloats(
        {_mm256_srli_epi32(x.low, 16), _mm256_srli_epi32(x.high, 16)});
  }

  // first, first + 1, ..., first + 15; first is a multiple of 16.
  static Wide Consecutive(uint32_t first) {
    const __m256i base = _mm256_add_epi64(_mm256_set1_epi64x(first),
                                          _mm256_set_epi64x(6, 4, 2, 0));
    const __m256i one = _mm256_set1_epi64x(1);
    const __m256i upper = _mm256_add_epi64(base, _mm256_set1_epi64x(8));
    return {{base, _mm256_add_epi64(base, one), upper,
             _mm256_add_epi64(upper, one)}};
  }
  static Wide BroadcastWide(uint32_t value) {
    const __m256i v = _mm256_set1_epi64x(value);
    return {{v, v, v, v}};
  }
  static Wide MultiplyWide(Wide x, uint32_t factor) {
    const __m256i f = _mm256_set1_epi64x(factor);
    for (__m256i& part : x.part) part = _mm256_mul_epu32(part, f);
    return x;
  }
  static Wide XorWide(Wide x, uint32_t value) {
    const __m256i v = _mm256_set1_epi64x(value);
    for (__m256i& part : x.part) part = _mm256_xor_si256(part, v);
    return x;
  }
  // Upper halves of a product, as lower ones, xor value.
  static Wide HighXor(Wide product, uint32_t value) {
    for (__m256i& part : product.part) part = _mm256_srli_epi64(part, 32);
    return XorWide(product, value);
  }
  static Wide HighXor(Wide product, Wide other, uint32_t value) {
    Wide x = HighXor(product, value);
    for (int i = 0; i < 4; ++i) {
      x.part[i] = _mm256_xor_si256(x.part[i], other.part[i]);
    }
    return x;
  }
  static Words Narrow(Wide x) {
    const auto join = [](__m256i even, __m256i odd) {
      return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    };
    return {join(x.part[0], x.part[1]), join(x.part[2], x.part[3])};
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SIMD_AVX2_H_
