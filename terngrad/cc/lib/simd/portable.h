// Sixteen lanes in four vectors of GCC and Clang, for every processor.

#ifndef TERNGRAD_CC_LIB_SIMD_PORTABLE_H_
#define TERNGRAD_CC_LIB_SIMD_PORTABLE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace terngrad {

struct PortableLanes {
  static constexpr const char* kPath = "portable";

  typedef float Float4 __attribute__((vector_size(16)));
  typedef int32_t Int4 __attribute__((vector_size(16)));

  template <class Vector, int kVectors>
  struct Lanes {
    Vector part[kVectors];
  };
  using Floats = Lanes<Float4, 4>;
  using Words = Lanes<Int4, 4>;
  using Halves = Lanes<Float4, 8>;  // 32 lanes
  // A part is one lane. The upper half is not part of the value.
  static constexpr int kParts = 16;
  using Wide = uint64_t;

  // Part by part: compilers load more than a vector through memory.
  static Floats Load(const float* values) {
    return Make<Floats>([&](int i) {
      Float4 part;
      std::memcpy(&part, values + 4 * i, sizeof(part));
      return part;
    });
  }
  static void Store(float* values, const Floats& x) {
    std::memcpy(values, x.part, sizeof(x));
  }
  // The compilers have no common way to store past the caches.
  static void Stream(float* values, const Floats& x) { Store(values, x); }
  static void FinishStreams() {}
  static void StoreWords(uint32_t* words, const Words& x) {
    std::memcpy(words, x.part, sizeof(x));
  }
  static Words LoadWords(const uint32_t* words) {
    Words x;
    std::memcpy(x.part, words, sizeof(x));
    return x;
  }
  static Floats Broadcast(float value) {
    return Make<Floats>(
        [&](int) { return Float4{value, value, value, value}; });
  }
  static Floats Add(const Floats& a, const Floats& b) {
    return Make<Floats>([&](int i) { return a.part[i] + b.part[i]; });
  }
  static Floats Subtract(const Floats& a, const Floats& b) {
    return Make<Floats>([&](int i) { return a.part[i] - b.part[i]; });
  }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return Make<Floats>([&](int i) { return a.part[i] * b.part[i]; });
  }
  static Floats Divide(const Floats& a, const Floats& b) {
    return Make<Floats>([&](int i) { return a.part[i] / b.part[i]; });
  }
  static Floats SquareRoot(const Floats& x) {
    return Make<Floats>([&](int i) {
      const Float4 part = x.part[i];
      return Float4{std::sqrt(part[0]), std::sqrt(part[1]), std::sqrt(part[2]),
                    std::sqrt(part[3])};
    });
  }
  // b where a or b is NaN.
  static Floats Min(const Floats& a, const Floats& b) {
    return Make<Floats>(
        [&](int i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
  }
  static Floats Magnitude(const Floats& x) {
    return Make<Floats>(
        [&](int i) { return (Float4)((Int4)x.part[i] & 0x7FFFFFFF); });
  }

  // Floats serve as well: the comparisons round down.
  static Halves RoundDown(const Floats& low, const Floats& high) {
    return Make<Halves>(
        [&](int i) { return i < 4 ? low.part[i] : high.part[i - 4]; });
  }
  static uint32_t Greater(const Halves& a, const Halves& b) {
    return Mask([&](int i) { return a.part[i] >= b.part[i] + 1; });
  }
  static uint32_t Equal(const Halves& a, const Halves& b) {
    return Mask([&](int i) {
      return (a.part[i] >= b.part[i]) & ~(a.part[i] >= b.part[i] + 1);
    });
  }
  // Which of 32 lanes are greater than `limit`; not NaN.
  static uint32_t Exceeds(const Floats& low, const Floats& high, float limit) {
    return Mask([&](int i) {
      return (Int4)((i < 4 ? low : high).part[i % 4] > limit);
    });
  }
  static uint32_t SignBits(const Floats& low, const Floats& high) {
    return Mask([&](int i) { return Signs(low, high, i); });
  }

  // x >= 0 rounded down, below 2^31: the upper and the lower 16 bits; NaN gives
  // 0.
  static void Split(const Floats& low, const Floats& high, Halves* whole,
                    Halves* rest) {
    for (int i = 0; i < 8; ++i) {
      const Float4 x = i < 4 ? low.part[i] : high.part[i - 4];
      const Int4 bits =
          __builtin_convertvector((Float4)((Int4)x & (x == x)), Int4);
      whole->part[i] = __builtin_convertvector(bits >> 16, Float4);
      rest->part[i] = __builtin_convertvector(bits & 0xFFFF, Float4);
    }
  }
  // x, and one more where a > b.
  static Halves AddWhereGreater(const Halves& x, const Halves& a,
                                const Halves& b) {
    return Make<Halves>([&](int i) {
      const Int4 greater = a.part[i] > b.part[i];
      return x.part[i] - __builtin_convertvector(greater, Float4);
    });
  }
  // -x where the floats have sign bits; any value where they are 0.
  static Halves NegateWhereNegative(const Halves& x, const Floats& low,
                                    const Floats& high) {
    return Make<Halves>(
        [&](int i) { return Signs(low, high, i) ? -x.part[i] : x.part[i]; });
  }
  // 2^16 - 1 - x where the floats have sign bits, or where they have none.
  static Halves Complement(const Halves& x, const Floats& low,
                           const Floats& high, bool where_positive) {
    return Make<Halves>([&](int i) {
      const Int4 lanes = Signs(low, high, i) ^ -int{where_positive};
      return lanes ? 65535 - x.part[i] : x.part[i];
    });
  }
  // Writes bit j of the 32 lanes to planes[j], j < PLANES <= 8.
  template <int PLANES>
  static void PutPlanes(const Halves& x, uint32_t (&planes)[PLANES]) {
    for (int j = 0; j < PLANES; ++j) {
      planes[j] = Mask([&](int i) {
        const Int4 codes = __builtin_convertvector(x.part[i], Int4);
        return (codes & 1 << j) != 0;
      });
    }
  }

  static Words Zeros() { return {}; }
  static Words MagnitudeBits(const Floats& x) {
    return Make<Words>([&](int i) { return (Int4)x.part[i] & 0x7FFFFFFF; });
  }
  // Words have no sign here.
  static Words Max(const Words& a, const Words& b) {
    return Make<Words>(
        [&](int i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
  }
  // x | weight in the lanes of the lowest 16 bits of `lanes`.
  static Words OrWhere(const Words& x, uint32_t lanes, uint32_t weight) {
    return Make<Words>([&](int i) {
      const Int4 bits = Bits(i);
      return x.part[i] | (((bits & static_cast<int32_t>(lanes)) == bits) &
                          static_cast<int32_t>(weight));
    });
  }
  static Floats ToFloats(const Words& x) {
    return Make<Floats>(
        [&](int i) { return __builtin_convertvector(x.part[i], Float4); });
  }

  static Wide Consecutive(uint32_t first, int part) { return first + part; }
  static Wide Repeat(uint64_t value) { return value; }
  static Wide MultiplyWide(Wide x, uint32_t factor) {
    return uint64_t{static_cast<uint32_t>(x)} * factor;
  }
  static Wide Xor(Wide x, Wide other) { return x ^ other; }
  // The upper half of a product, as lower one, xor the other's lower one.
  static Wide HighXor(Wide product, Wide other) {
    return product >> 32 ^ other;
  }
  // The lower halves of the words, then the upper ones.
  static Halves ToHalves(const Wide (&x)[kParts]) {
    uint32_t words[kParts];
    for (int i = 0; i < kParts; ++i) words[i] = static_cast<uint32_t>(x[i]);
    Int4 lanes[4];
    std::memcpy(lanes, words, sizeof(lanes));
    return Make<Halves>([&](int i) {
      const Int4 half =
          i < 4 ? lanes[i] & 0xFFFF : (lanes[i - 4] >> 16) & 0xFFFF;
      return __builtin_convertvector(half, Float4);
    });
  }

 private:
  template <class Result, class Function>
  static Result Make(Function function) {
    Result x;
    int i = 0;
    for (auto& part : x.part) part = function(i++);
    return x;
  }

  // All bits of lanes 4 i to 4 i + 3 of 32 whose floats have sign bits.
  static Int4 Signs(const Floats& low, const Floats& high, int i) {
    return (Int4)(i < 4 ? low : high).part[i % 4] < 0;
  }

  // Bits 4 i to 4 i + 3.
  static Int4 Bits(int i) {
    const uint32_t bit = uint32_t{1} << 4 * i;
    return Int4{int(bit), int(bit << 1), int(bit << 2), int(bit << 3)};
  }

  // A bit for each of 32 lanes.
  template <class Function>
  static uint32_t Mask(Function function) {
    Int4 bits = {};
    for (int i = 0; i < 8; ++i) bits |= function(i) & Bits(i);
    return bits[0] | bits[1] | bits[2] | bits[3];
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SIMD_PORTABLE_H_
