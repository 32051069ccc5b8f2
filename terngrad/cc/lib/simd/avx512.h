// Sixteen lanes in one AVX-512 register.

#ifndef TERNGRAD_CC_LIB_SIMD_AVX512_H_
#define TERNGRAD_CC_LIB_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace terngrad {

struct Avx512Lanes {
  static constexpr const char* kPath = "avx512";

  using Floats = __m512;
  using Words = __m512i;
  using Halves = __m512i;  // 32 lanes of 16 bits, unsigned
  // Words of 64-bit lanes; the upper halves are not part of the value.
  static constexpr int kParts = 1;
  struct Wide {
    __m512i even, odd;
  };

  static Floats Load(const float* values) { return _mm512_loadu_ps(values); }
  static void Store(float* values, Floats x) { _mm512_storeu_ps(values, x); }
  // Stores 64 bytes at a multiple of 64 past the caches.
  static void Stream(float* values, Floats x) { _mm512_stream_ps(values, x); }
  // Makes what was streamed visible to other threads.
  static void FinishStreams() { _mm_sfence(); }
  static void StoreWords(uint32_t* words, Words x) {
    _mm512_storeu_si512(words, x);
  }
  static Words LoadWords(const uint32_t* words) {
    return _mm512_loadu_si512(words);
  }
  static Floats Broadcast(float value) { return _mm512_set1_ps(value); }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats SquareRoot(Floats x) { return _mm512_sqrt_ps(x); }
  // b where a or b is NaN.
  static Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats Magnitude(Floats x) { return _mm512_abs_ps(x); }

  // x >= 0 rounded down, at most 2^16 - 1; NaN gives 0.
  static Halves RoundDown(Floats low, Floats high) {
    return _mm512_permutexvar_epi64(
        _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
        _mm512_packus_epi32(_mm512_cvttps_epi32(low),
                            _mm512_cvttps_epi32(high)));
  }
  static uint32_t Greater(Halves a, Halves b) {
    return _mm512_cmpgt_epu16_mask(a, b);
  }
  static uint32_t Equal(Halves a, Halves b) {
    return _mm512_cmpeq_epu16_mask(a, b);
  }
  // Which of 32 lanes are greater than `limit`; not NaN.
  static uint32_t Exceeds(Floats low, Floats high, float limit) {
    const Floats limits = Broadcast(limit);
    const uint32_t upper = _mm512_cmp_ps_mask(high, limits, _CMP_GT_OQ);
    return _mm512_cmp_ps_mask(low, limits, _CMP_GT_OQ) | upper << 16;
  }
  static uint32_t SignBits(Floats low, Floats high) {
    return _mm512_movepi32_mask(_mm512_castps_si512(low)) |
           _mm512_movepi32_mask(_mm512_castps_si512(high)) << 16;
  }

  // x >= 0 rounded down, below 2^31: the upper and the lower 16 bits. The
  // lowest 8 bits of both are 0 where x is NaN.
  static void Split(Floats low, Floats high, Halves* whole, Halves* rest) {
    const __m512i a = _mm512_cvttps_epi32(low);
    const __m512i b = _mm512_cvttps_epi32(high);
    const __m512i even = _mm512_set_epi16(
        62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32,  //
        30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
    *whole = _mm512_permutex2var_epi16(a, odd, b);
    *rest = _mm512_permutex2var_epi16(a, even, b);
  }
  // x, and one more where a > b.
  static Halves AddWhereGreater(Halves x, Halves a, Halves b) {
    return _mm512_mask_add_epi16(x, Greater(a, b), x, _mm512_set1_epi16(1));
  }
  // -x where the floats have sign bits; any value where they are 0.
  static Halves NegateWhereNegative(Halves x, Floats low, Floats high) {
    return _mm512_mask_sub_epi16(x, SignBits(low, high), _mm512_setzero_si512(),
                                 x);
  }
  // 2^16 - 1 - x where the floats have sign bits, or where they have none.
  static Halves Complement(Halves x, Floats low, Floats high,
                           bool where_positive) {
    const uint32_t lanes = SignBits(low, high) ^ (0u - where_positive);
    return _mm512_mask_sub_epi16(x, lanes, _mm512_set1_epi16(-1), x);
  }
  // Writes bit j of the 32 lanes to planes[j], j < PLANES <= 8.
  template <int PLANES>
  static void PutPlanes(Halves x, uint32_t (&planes)[PLANES]) {
    for (int j = 0; j < PLANES; ++j) {
      planes[j] = _mm512_test_epi16_mask(
          x, _mm512_set1_epi16(static_cast<int16_t>(1 << j)));
    }
  }

  static Words Zeros() { return _mm512_setzero_si512(); }
  static Words MagnitudeBits(Floats x) {
    return _mm512_castps_si512(_mm512_abs_ps(x));
  }
  static Words Max(Words a, Words b) { return _mm512_max_epu32(a, b); }
  // x | weight in the lanes of the lowest 16 bits of `lanes`.
  static Words OrWhere(Words x, uint32_t lanes, uint32_t weight) {
    return _mm512_mask_or_epi32(x, static_cast<__mmask16>(lanes), x,
                                _mm512_set1_epi32(static_cast<int>(weight)));
  }
  static Floats ToFloats(Words x) { return _mm512_cvtepi32_ps(x); }

  // first, first + 1, ..., first + 15; first is a multiple of 16.
  static Wide Consecutive(uint32_t first, int) {
    const __m512i even = _mm512_add_epi64(
        _mm512_set1_epi64(first), _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0));
    return {even, _mm512_add_epi64(even, _mm512_set1_epi64(1))};
  }
  static Wide Repeat(uint64_t value) {
    const __m512i v = _mm512_set1_epi64(static_cast<int64_t>(value));
    return {v, v};
  }
  static Wide MultiplyWide(Wide x, uint32_t factor) {
    const __m512i f = _mm512_set1_epi64(factor);
    return {_mm512_mul_epu32(x.even, f), _mm512_mul_epu32(x.odd, f)};
  }
  static Wide Xor(Wide x, Wide other) {
    return {_mm512_xor_si512(x.even, other.even),
            _mm512_xor_si512(x.odd, other.odd)};
  }
  // Upper halves of a product, as lower ones, xor the other's lower ones.
  static Wide HighXor(Wide product, Wide other) {
    return Xor({_mm512_srli_epi64(product.even, 32),
                _mm512_srli_epi64(product.odd, 32)},
               other);
  }
  // The lower halves of the words, then the upper ones.
  static Halves ToHalves(const Wide (&x)[kParts]) {
    const __m512i order = _mm512_set_epi16(
        61, 29, 57, 25, 53, 21, 49, 17, 45, 13, 41, 9, 37, 5, 33, 1,  //
        60, 28, 56, 24, 52, 20, 48, 16, 44, 12, 40, 8, 36, 4, 32, 0);
    return _mm512_permutex2var_epi16(x[0].even, order, x[0].odd);
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SIMD_AVX512_H_
