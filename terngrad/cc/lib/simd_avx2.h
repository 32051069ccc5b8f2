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
  // 0, 8, 4, 12 are in the first register of the first part, and the following
  // ones in the other three.
  static constexpr int kParts = 2;
  struct Wide {
    __m256i first, second;
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

  // x >= 0 rounded down, at most 2^16 - 1; NaN gives 0.
  static Halves RoundDown(Floats low, Floats high) {
    const auto round = [](Floats x) {
      return _mm256_packus_epi32(_mm256_cvttps_epi32(x.low),
                                 _mm256_cvttps_epi32(x.high));
    };
    return {round(low), round(high)};
  }
  static uint32_t Greater(Halves a, Halves b) {
    const __m256i excess =
        _mm256_packs_epi16(_mm256_subs_epu16(a.low, b.low),
                           _mm256_subs_epu16(a.high, b.high));
    return ~Mask(_mm256_cmpeq_epi8(excess, _mm256_setzero_si256()));
  }
  static uint32_t Equal(Halves a, Halves b) {
    return Mask(_mm256_packs_epi16(_mm256_cmpeq_epi16(a.low, b.low),
                                   _mm256_cmpeq_epi16(a.high, b.high)));
  }
  static uint32_t SignBits(Floats low, Floats high) {
    const auto pack = [](Floats x) {
      return _mm256_packs_epi32(_mm256_castps_si256(x.low),
                                _mm256_castps_si256(x.high));
    };
    return Mask(_mm256_packs_epi16(pack(low), pack(high)));
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

  // Lanes of a part of first, first + 1, ..., first + 15, a multiple of 16.
  static Wide Consecutive(uint32_t first, int part) {
    const __m256i x = _mm256_add_epi64(_mm256_set1_epi64x(first + 2 * part),
                                       _mm256_set_epi64x(12, 4, 8, 0));
    return {x, _mm256_add_epi64(x, _mm256_set1_epi64x(1))};
  }
  static Wide BroadcastWide(uint32_t value) {
    return {_mm256_set1_epi64x(value), _mm256_set1_epi64x(value)};
  }
  static Wide MultiplyWide(Wide x, uint32_t factor) {
    const __m256i f = _mm256_set1_epi64x(factor);
    return {_mm256_mul_epu32(x.first, f), _mm256_mul_epu32(x.second, f)};
  }
  static Wide XorWide(Wide x, uint32_t value) {
    return XorWide(x, BroadcastWide(value));
  }
  // Upper halves of a product, as lower ones, xor value.
  static Wide HighXor(Wide product, uint32_t value) {
    return XorWide({_mm256_srli_epi64(product.first, 32),
                    _mm256_srli_epi64(product.second, 32)},
                   value);
  }
  static Wide HighXor(Wide product, Wide other, uint32_t value) {
    return XorWide(HighXor(product, value), other);
  }
  // The lower halves of the words, then the upper ones.
  static Halves ToHalves(const Wide (&x)[kParts]) {
    const auto join = [](__m256i even, __m256i odd) {
      return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    };
    const __m256i even = join(x[0].first, x[1].first);
    const __m256i odd = join(x[0].second, x[1].second);
    return {_mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA),
            _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA)};
  }

 private:
  static Wide XorWide(Wide a, Wide b) {
    return {_mm256_xor_si256(a.first, b.first),
            _mm256_xor_si256(a.second, b.second)};
  }
  // Sign bits of 32 bytes, packed from four registers of 8 lanes.
  static uint32_t Mask(__m256i bytes) {
    const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    return static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order)));
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SIMD_AVX2_H_
