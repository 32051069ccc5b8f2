#include "terngrad/cc/net/reduce.h"

#include <algorithm>
#include <cstring>

namespace terngrad {
namespace {

constexpr int64_t kBlock = 512;  // floats of a part that stay in the cache

void AddPair(const float* a, const float* b, int64_t n, float* total) {
  for (int64_t i = 0; i < n; ++i) total[i] = a[i] + b[i];
}

// Adds the first n <= kBlock values; `scratch` holds half of the parts.
void TreeSumBlock(const std::vector<const float*>& parts, int64_t first,
                  int64_t n, float* scratch, float* total) {
  const size_t count = parts.size();
  for (size_t i = 0; i + 1 < count; i += 2) {
    AddPair(parts[i] + first, parts[i + 1] + first, n, scratch + i / 2 * n);
  }
  if (count % 2) {
    std::copy_n(parts.back() + first, n, scratch + count / 2 * n);
  }
  for (size_t left = (count + 1) / 2; left > 1; left = (left + 1) / 2) {
    for (size_t i = 0; i + 1 < left; i += 2) {
      AddPair(scratch + i * n, scratch + (i + 1) * n, n, scratch + i / 2 * n);
    }
    if (left % 2) {
      std::copy_n(scratch + (left - 1) * n, n, scratch + left / 2 * n);
    }
  }
  std::copy_n(scratch, n, total + first);
}

}  // namespace

float FloatOfHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31, fraction = half & 0x3ffu;
  uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
  if (exponent == 31) bits = sign | 0x7f800000u | fraction << 13;
  float value;
  if (exponent == 0) {  // fraction / 2^24, which a float has exactly
    value = static_cast<float>(fraction) / 16777216.0f;
    return sign ? -value : value;
  }
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t HalfOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint16_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;   // not a number
  if (bits >= 0x47800000u) return sign | 0x7c00u;  // 65536 or more
  // The fraction of a smaller number than 2^-14 has the unit 2^-24.
  const bool is_small = bits < 0x38800000u;
  const uint32_t exponent = bits >> 23;
  if (exponent < 102) return sign;  // below 2^-25
  const uint32_t shift = is_small ? 126 - exponent : 13;
  const uint32_t whole = is_small ? (bits & 0x7fffffu) | 0x800000u : bits;
  uint32_t rounded = whole >> shift;
  const uint32_t left = whole & ((1u << shift) - 1), tie = 1u << (shift - 1);
  if (left > tie || (left == tie && rounded & 1)) ++rounded;
  // 112 << 10: the difference of the exponents' biases.
  return sign | (is_small ? rounded : rounded - (112u << 10));
}

void TreeSum(const std::vector<const float*>& parts, int64_t n, float* total) {
  if (parts.size() == 2) {
    AddPair(parts[0], parts[1], n, total);
    return;
  }
  std::vector<float> scratch((parts.size() + 1) / 2 * kBlock);
  for (int64_t i = 0; i < n; i += kBlock) {
    TreeSumBlock(parts, i, std::min(kBlock, n - i), scratch.data(), total);
  }
}

void Maxima(const std::vector<const float*>& parts, int64_t n, float* largest) {
  std::copy_n(parts[0], n, largest);
  for (size_t part = 1; part < parts.size(); ++part) {
    for (int64_t i = 0; i < n; ++i) {
      const float a = largest[i], b = parts[part][i];
      largest[i] = a > b || a != a ? a : b;
    }
  }
}

void MeanOfHalves(const std::vector<const uint8_t*>& parts, int64_t n,
                  uint8_t* mean) {
  std::vector<float> wide(parts.size() * kBlock), total(kBlock);
  const float count = parts.size();
  std::vector<const float*> floats;
  for (size_t part = 0; part < parts.size(); ++part) {
    floats.push_back(wide.data() + part * kBlock);
  }
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t rows = std::min(kBlock, n - first);
    for (size_t part = 0; part < parts.size(); ++part) {
      for (int64_t i = 0; i < rows; ++i) {
        uint16_t half;
        std::memcpy(&half, parts[part] + 2 * (first + i), sizeof(half));
        wide[part * kBlock + i] = FloatOfHalf(half);
      }
    }
    TreeSum(floats, rows, total.data());
    for (int64_t i = 0; i < rows; ++i) {
      const uint16_t half = HalfOfFloat(total[i] / count);
      std::memcpy(mean + 2 * (first + i), &half, sizeof(half));
    }
  }
}

}  // namespace terngrad
