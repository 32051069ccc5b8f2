// Buckets of random variables for tests of the kernels for GPUs.

#ifndef TERNGRAD_CC_GPU_TESTING_BUCKETS_H_
#define TERNGRAD_CC_GPU_TESTING_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/gpu/scalars.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {

using namespace ::terngrad::testing;  // checks and numbers, as on the CPU

inline constexpr int64_t kSizes[] = {0,   1,   2,   15,   31,   32,   33,  96,
                                     127, 128, 129, 255,  256,  257,  300, 512,
                                     513, 640, 999, 1024, 1500, 4097, 5000};

inline constexpr Parts kParts[] = {
    {},
    {},
    {1, 2, 0},
    {1, 3, 0},
    {1, 16, 3},
    {1, 33, 0},
    {1, 100, 99},
    {1, 64, (int64_t{1} << 33) + 7},
    {7, 5, 0},
    {32, 4, 0},
    {64, 9, 37},
    {128, 50, 0},
    {384, 20, 1000},
    {int64_t{1} << 33, 3, (int64_t{1} << 33) - 100}};

inline float SomeFloat(Random& random) {
  const uint64_t kind = random() % 16;
  if (kind == 0) return Pick(kEdges, random());
  if (kind == 1) return FloatOf(static_cast<uint32_t>(random()));
  return Uniform(random);
}

inline Floats SomeFloats(int64_t count, Random& random) {
  Floats values(count);
  for (float& x : values) x = SomeFloat(random);
  return values;
}

// Numbers of a type, and their conversion to float32.
struct Values {
  ValueType type;
  Floats floats;
  std::vector<uint16_t> halves;

  Values(ValueType type, int64_t size, Random& random) : type(type) {
    if (type == ValueType::kFloat32) {
      floats = SomeFloats(size, random);
      return;
    }
    for (int64_t i = 0; i < size; ++i) {
      const bool is_half = type == ValueType::kFloat16;
      // Most bfloat16 numbers are too large or too small to matter.
      const uint16_t bits = is_half || random() % 8 == 0
                                ? random()
                                : BitsOf(Uniform(random)) >> 16;
      halves.push_back(bits);
      floats.push_back(is_half ? FloatOfHalf(bits) : FloatOfBfloat(bits));
    }
  }

  const void* data() const {
    return halves.empty() ? static_cast<const void*>(floats.data())
                          : halves.data();
  }
};

// A number for each part, as the CPU's kernels read them.
template <class Number>
Floats Padded(const Parts& parts, Number number) {
  Floats numbers;
  for (int64_t i = 0; i < PaddedCount(parts); ++i) {
    numbers.push_back(number(i % parts.count));
  }
  return numbers;
}

// The sizes and parts of a bucket's variables.
struct Bucket {
  std::vector<int64_t> sizes, offsets;
  std::vector<Parts> parts;
  std::vector<Floats> scales;  // of the parts
  int64_t elements = 0;

  explicit Bucket(Random& random) {
    const int count = 1 + random() % (random() % 4 ? 6 : 40);
    for (int i = 0; i < count; ++i) {
      sizes.push_back(Pick(kSizes, random()));
      offsets.push_back(elements);
      elements += sizes.back();
      parts.push_back(Pick(kParts, random()));
      scales.emplace_back(parts.back().count);
      for (float& scale : scales.back()) {
        scale = random() % 3 ? 1.0f : Pick(kScales, random());
      }
    }
    trying = std::to_string(count) + " variables of";
    for (size_t i = 0; i < sizes.size(); ++i) {
      trying += " " + std::to_string(sizes[i]) + "/" +
                std::to_string(parts[i].block) + "/" +
                std::to_string(parts[i].count) + "/" +
                std::to_string(parts[i].first);
    }
  }

  size_t count() const { return sizes.size(); }
  int64_t rows() const { return BlocksOf(elements, kWordBits); }
  int64_t blocks() const { return BlocksOf(rows(), kBlockRows); }
};

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_TESTING_BUCKETS_H_
