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
  // 32 lanes of 16 bits, unsigned: the first 16 in `low`. In both, lanes 4 to 7
  // and 8 to 11 have changed places, as packing two registers leaves them.
  struct Halves {
    __m256i low, high;
  };
  // Words of 64-bit lanes; the upper halves are not part of the value. Lanes
  // 0, 8, 4, 12 are in the first register, the following ones in the others.
  static constexpr int kParts = 1;
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
  // Stores 64 bytes at a multiple of 64 past the caches.
  static void Stream(float* values, Floats x) {
    _mm256_stream_ps(values, x.low);
    _mm256_stream_ps(values + 8, x.high);
  }
  // Makes what was streamed visible to other threads.
  static void FinishStreams() { _mm_sfence(); }
  static void StoreWords(uint32_t* words, Words x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), x.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8), x.high);
  }
  static Words LoadWords(const uint32_t* words) {
    const auto* const vectors = reinterpret_cast<const __m256i*>(words);
    return {_mm256_loadu_si256(vectors), _mm256_loadu_si256(vectors + 1)};
  }
  static Floats Broadcast(float value) {
    return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
  }
  static Floats Add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats Subtract(Floats a, Floats b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static Floats Multiply(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Floats Divide(Floats a, Floats b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  static Floats SquareRoot(Floats x) {
    return {_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)};
  }
  // b where a or b is NaN.
  static Floats Min(Floats a, Floats b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Floats Magnitude(Floats x) {
    const Words bits = MagnitudeBits(x);
    return {_mm256_castsi256_ps(bits.low), _mm256_castsi256_ps(bits.high)};
  }

  // x >= 0 rounded down, at most 2^16 - 1; NaN gives 0.
  static Halves RoundDown(Floats low, Floats high) {
    const auto round = [](Floats x) {
      return _mm256_packus_epi32(_mm256_cvttps_epi32(x.low),
                                 _mm256_cvttps_epi32(x.high));
    };
    return {round(low), round(high)};
  }
  static uint32_t Greater(Halves a, Halves b) {
    const __m256i excess = _mm256_packs_epi16(
        _mm256_subs_epu16(a.low, b.low), _mm256_subs_epu16(a.high, b.high));
    return ~Mask(_mm256_cmpeq_epi8(excess, _mm256_setzero_si256()));
  }
  static uint32_t Equal(Halves a, Halves b) {
    return Mask(_mm256_packs_epi16(_mm256_cmpeq_epi16(a.low, b.low),
                                   _mm256_cmpeq_epi16(a.high, b.high)));
  }
  // Which of 32 lanes are greater than `limit`; not NaN.
  static uint32_t Exceeds(Floats low, Floats high, float limit) {
    const __m256 limits = _mm256_set1_ps(limit);
    const auto compare = [&](__m256 x) {
      return static_cast<uint32_t>(
          _mm256_movemask_ps(_mm256_cmp_ps(x, limits, _CMP_GT_OQ)));
    };
    return compare(low.low) | compare(low.high) << 8 | compare(high.low) << 16 |
           compare(high.high) << 24;
  }
  static uint32_t SignBits(Floats low, Floats high) {
    return Mask(_mm256_packs_epi16(PackSigns(low), PackSigns(high)));
  }

  // x >= 0 rounded down, below 2^31: the upper and the lower 16 bits. The
  // lowest 8 bits of both are 0 where x is NaN.
  static void Split(Floats low, Floats high, Halves* whole, Halves* rest) {
    const auto split = [](Floats x, __m256i* upper, __m256i* lower) {
      const __m256i a = _mm256_cvttps_epi32(x.low);
      const __m256i b = _mm256_cvttps_epi32(x.high);
      const __m256i zero = _mm256_setzero_si256();
      *upper = _mm256_packus_epi32(_mm256_srli_epi32(a, 16),
                                   _mm256_srli_epi32(b, 16));
      *lower = _mm256_packus_epi32(_mm256_blend_epi16(a, zero, 0xAA),
                                   _mm256_blend_epi16(b, zero, 0xAA));
    };
    split(low, &whole->low, &rest->low);
    split(high, &whole->high, &rest->high);
  }
  // x, and one more where a > b.
  static Halves AddWhereGreater(Halves x, Halves a, Halves b) {
    const auto add = [](__m256i x, __m256i a, __m256i b) {
      const __m256i excess = _mm256_subs_epu16(a, b);
      return _mm256_add_epi16(x,
                              _mm256_min_epu16(excess, _mm256_set1_epi16(1)));
    };
    return {add(x.low, a.low, b.low), add(x.high, a.high, b.high)};
  }
  // -x where the floats have sign bits; any value where they are 0.
  static Halves NegateWhereNegative(Halves x, Floats low, Floats high) {
    return {_mm256_sign_epi16(x.low, PackSigns(low)),
            _mm256_sign_epi16(x.high, PackSigns(high))};
  }
  // 2^16 - 1 - x where the floats have sign bits, or where they have none.
  static Halves Complement(Halves x, Floats low, Floats high,
                           bool where_positive) {
    const __m256i others = _mm256_set1_epi16(where_positive ? -1 : 0);
    const auto complement = [&](__m256i x, Floats signs) {
      const __m256i all = _mm256_srai_epi16(PackSigns(signs), 15);
      return _mm256_xor_si256(x, _mm256_xor_si256(all, others));
    };
    return {complement(x.low, low), complement(x.high, high)};
  }
  // Writes bit j of the 32 lanes to planes[j], j < PLANES <= 8.
  template <int PLANES>
  static void PutPlanes(Halves x, uint32_t (&planes)[PLANES]) {
    const __m256i lowest = _mm256_set1_epi16(0xFF);
    const __m256i bytes = InOrder(_mm256_packus_epi16(
        _mm256_and_si256(x.low, lowest), _mm256_and_si256(x.high, lowest)));
    for (int j = 0; j < PLANES; ++j) {
      planes[j] = static_cast<uint32_t>(
          _mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7 - j)));
    }
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

  // first, first + 1, ..., first + 15; first is a multiple of 16.
  static Wide Consecutive(uint32_t first, int) {
    Wide x = Repeat(first);
    for (int i = 0; i < 4; ++i) {
      x.part[i] = _mm256_add_epi64(x.part[i],
                                   _mm256_set_epi64x(12 + i, 4 + i, 8 + i, i));
    }
    return x;
  }
  __attribute__((always_inline)) static Wide Repeat(uint64_t value) {
    const __m256i v = _mm256_set1_epi64x(static_cast<int64_t>(value));
    return {{v, v, v, v}};
  }
  __attribute__((always_inline)) static Wide MultiplyWide(Wide x,
                                                          uint32_t factor) {
    const __m256i f = _mm256_set1_epi64x(factor);
    for (__m256i& part : x.part) part = _mm256_mul_epu32(part, f);
    return x;
  }
  __attribute__((always_inline)) static Wide Xor(Wide x, Wide other) {
    for (int i = 0; i < 4; ++i) {
      x.part[i] = _mm256_xor_si256(x.part[i], other.part[i]);
    }
    return x;
  }
  // Upper halves of a product, as lower ones, xor the other's lower ones.
  __attribute__((always_inline)) static Wide HighXor(Wide product, Wide other) {
    for (__m256i& part : product.part) part = _mm256_srli_epi64(part, 32);
    return Xor(product, other);
  }
  // The lower halves of the words, then the upper ones.
  __attribute__((always_inline)) static Halves ToHalves(
      const Wide (&x)[kParts]) {
    const auto join = [](__m256i even, __m256i odd) {
      return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    };
    const __m256i even = join(x[0].part[0], x[0].part[2]);
    const __m256i odd = join(x[0].part[1], x[0].part[3]);
    return {_mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA),
            _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA)};
  }

 private:
  // Sign bits of 32 bytes, packed from four registers of 8 lanes.
  static uint32_t Mask(__m256i bytes) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(InOrder(bytes)));
  }
  static __m256i InOrder(__m256i bytes) {
    const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    return _mm256_permutevar8x32_epi32(bytes, order);
  }
  // The upper bits of 16-bit lanes, in the order of Halves, are the signs.
  static __m256i PackSigns(Floats x) {
    return _mm256_packs_epi32(_mm256_castps_si256(x.low),
                              _mm256_castps_si256(x.high));
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SIMD_AVX2_H_
