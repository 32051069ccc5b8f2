// Random numbers and those at the edges of the rules, for tests of the kernels.

#ifndef TERNGRAD_CC_LIB_TESTING_NUMBERS_H_
#define TERNGRAD_CC_LIB_TESTING_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace terngrad {
namespace testing {

using Words = std::vector<uint32_t>;
using Floats = std::vector<float>;

using Random = std::mt19937_64;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline constexpr float kBounds[] = {kInfinity, 0.3f,   0x1p-20f,
                                    0.0f,      1e-40f, 3e38f};
inline constexpr float kScales[] = {1.0f,      0.37f, 0x1p-100f, 0x1p-101f,
                                    0.0f,      -1.0f, 1e-40f,    3.4e38f,
                                    kInfinity, kNaN,  0x1p24f,   1e-20f};
inline constexpr float kEdges[] = {0.0f,       -0.0f,    0x1p-149f, -1e-40f,
                                   0x1p-126f,  0x1p-99f, 3.4e38f,   kInfinity,
                                   -kInfinity, kNaN};

template <class T, size_t N>
const T& Pick(const T (&items)[N], uint64_t i) {
  return items[i % N];
}

inline float Uniform(Random& random) {  // in [-1, 1)
  return static_cast<float>(static_cast<int32_t>(random() >> 32)) * 0x1p-31f;
}

inline Words SomeWords(int64_t count, Random& random) {
  Words words(count);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  return words;
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_NUMBERS_H_
