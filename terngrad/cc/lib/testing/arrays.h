// Arrays for tests of the kernels: floats, and buckets as integers and as bit
// planes.

#ifndef TERNGRAD_CC_LIB_TESTING_ARRAYS_H_
#define TERNGRAD_CC_LIB_TESTING_ARRAYS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace testing {

using Integers = std::vector<int64_t>;

inline constexpr uint32_t kGuardWord = 0xDEADBEEF;
inline constexpr float kGuardValue = -12345.0f;

// Around the sizes of a word, of one and two groups of draws, and of a block of
// statistics.
inline constexpr int64_t kSizes[] = {0,   1,   31,  32,  33,
                                     127, 128, 129, 257, 4097};

inline float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline Floats SomeFloats(int64_t count, Random& random) {
  Floats values(count);
  for (float& x : values) {
    const uint64_t kind = random() % 8;
    x = Uniform(random);
    if (kind == 0) x = Pick(kEdges, random());
    if (kind == 1) x = FloatOf(static_cast<uint32_t>(random()));
  }
  return values;
}

inline int64_t GroupsOf(int64_t elements) {
  return (elements + kWordBits - 1) / kWordBits;
}

// Converts a bucket to bit planes by their definition, and back.
inline Words PlanesOf(const Integers& values, int planes) {
  Words words(GroupsOf(values.size()) * planes);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int j = 0; j < planes; ++j) {
      const uint32_t bit = static_cast<uint64_t>(values[i]) >> j & 1;
      words[i / kWordBits * planes + j] |= bit << i % kWordBits;
    }
  }
  return words;
}

inline Integers IntegersOf(const Words& words, int planes) {
  Integers values(words.size() / planes * kWordBits);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int j = 0; j < planes; ++j) {
      const int64_t bit =
          words[i / kWordBits * planes + j] >> i % kWordBits & 1;
      const int64_t power = int64_t{1} << j;
      values[i] += bit * (j == planes - 1 ? -power : power);
    }
  }
  return values;
}

// Returns `whole` with guards outside [begin, end).
template <class T>
std::vector<T> Part(const std::vector<T>& whole, int64_t begin, int64_t end,
                    T guard) {
  std::vector<T> part(whole.size(), guard);
  end = std::min<int64_t>(end, whole.size());
  for (int64_t i = begin; i < end; ++i) part[i] = whole[i];
  return part;
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_ARRAYS_H_
