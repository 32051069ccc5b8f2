// Sixteen lanes in arrays, for every processor.

#ifndef TERNGRAD_CC_LIB_SIMD_PORTABLE_H_
#define TERNGRAD_CC_LIB_SIMD_PORTABLE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace terngrad {

struct PortableLanes {
  static constexpr const char* kPath = "portable";
  static constexpr int kLanes = 16;

  struct Floats {
    float lane[kLanes];
  };
  struct Words {
    uint32_t lane[kLanes];
  };
  // Words of 64-bit lanes; the upper halves are not part of the value.
  struct Wide {
    uint64_t lane[kLanes];
  };

  static Floats Load(const float* values) {
    Floats x;
    std::memcpy(x.lane, values, sizeof(x.lane));
    return x;
  }
  static void Store(float* values, const Floats& x) {
    std::memcpy(values, x.lane, sizeof(x.lane));
  }
  static void StoreWords(uint32_t* words, const Words& x) {
    std::memcpy(words, x.lane, sizeof(x.lane));
  }
  static Floats Broadcast(float value) {
    return Make<Floats>([&](int) { return value; });
  }
  static Floats Add(const Floats& a, const Floats& b) {
    return Make<Floats>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Floats Multiply(const Floats& a, const Floats& b) {
    return Make<Floats>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  // b where a or b is NaN.
  static Floats Min(const Floats& a, const Floats& b) {
    return Make<Floats>(
        [&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Floats Magnitude(const Floats& x) {
    return Make<Floats>([&](int i) { return std::fabs(x.lane[i]); });
  }

  static uint32_t Greater(const Floats& a, const Floats& b) {
    return Mask([&](int i) { return a.lane[i] > b.lane[i]; });
  }
  static uint32_t GreaterOrEqual(const Floats& a, const Floats& b) {
    return Mask([&](int i) { return a.lane[i] >= b.lane[i]; });
  }
  static uint32_t SignBits(const Floats& x) {
    uint32_t bits[kLanes];
    std::memcpy(bits, x.lane, sizeof(bits));
    return Mask([&](int i) { return bits[i] >> 31; });
  }

  static Words Zeros() {
    return Make<Words>([](int) { return 0u; });
  }
  static Words MagnitudeBits(const Floats& x) {
    Words bits;
    std::memcpy(bits.lane, x.lane, sizeof(bits.lane));
    return Make<Words>([&](int i) { return bits.lane[i] & 0x7FFFFFFF; });
  }
  static Words Max(const Words& a, const Words& b) {
    return Make<Words>(
        [&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // x | weight in the lanes of the lowest 16 bits of `lanes`.
  static Words OrWhere(const Words& x, uint32_t lanes, uint32_t weight) {
    return Make<Words>(
        [&](int i) { return x.lane[i] | (weight & (0u - (lanes >> i & 1))); });
  }
  static Floats ToFloats(const Words& x) {
    return Make<Floats>([&](int i) {
      return static_cast<float>(static_cast<int32_t>(x.lane[i]));
    });
  }
  static Floats LowHalves(const Words& x) {
    return Make<Floats>([&](int i) {
      return static_cast<float>(static_cast<int32_t>(x.lane[i] & 0xFFFF));
    });
  }
  static Floats HighHalves(const Words& x) {
    return Make<Floats>([&](int i) {
      return static_cast<float>(static_cast<int32_t>(x.lane[i] >> 16));
    });
  }

  // first, first + 1, ..., first + 15; first is a multiple of 16.
  static Wide Consecutive(uint32_t first) {
    return Make<Wide>([&](int i) { return uint64_t{first} + i; });
  }
  static Wide BroadcastWide(uint32_t value) {
    return Make<Wide>([&](int) { return uint64_t{value}; });
  }
  static Wide MultiplyWide(const Wide& x, uint32_t factor) {
    return Make<Wide>([&](int i) {
      return uint64_t{static_cast<uint32_t>(x.lane[i])} * factor;
    });
  }
  static Wide XorWide(const Wide& x, uint32_t value) {
    return Make<Wide>([&](int i) { return x.lane[i] ^ value; });
  }
  // Upper halves of a product, as lower ones, xor value.
  static Wide HighXor(const Wide& product, uint32_t value) {
    return Make<Wide>([&](int i) { return product.lane[i] >> 32 ^ value; });
  }
  static Wide HighXor(const Wide& product, const Wide& other, uint32_t value) {
    return Make<Wide>(
        [&](int i) { return product.lane[i] >> 32 ^ other.lane[i] ^ value; });
  }
  static Words Narrow(const Wide& x) {
    return Make<Words>([&](int i) { return static_cast<uint32_t>(x.lane[i]); });
  }

 private:
  template <class Vector, class Function>
  static Vector Make(Function function) {
    Vector x;
    for (int i = 0; i < kLanes; ++i) x.lane[i] = function(i);
    return x;
  }

  template <class Function>
  static uint32_t Mask(Function function) {
    uint32_t mask = 0;
    for (int i = 0; i < kLanes; ++i) {
      mask |= static_cast<uint32_t>(function(i)) << i;
    }
    return mask;
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SIMD_PORTABLE_H_
