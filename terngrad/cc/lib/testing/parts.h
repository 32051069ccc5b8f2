// Variables in parts, and numbers of these, for tests of the kernels.

#ifndef TERNGRAD_CC_LIB_TESTING_PARTS_H_
#define TERNGRAD_CC_LIB_TESTING_PARTS_H_

#include <cstddef>
#include <cstdint>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace testing {

// The parts of the i-th variable: one, columns, blocks, or a range of them.
inline constexpr Parts kParts[] = {
    {},         {1, 3, 0},  {},          {7, 5, 0},    {1, 16, 3},
    {32, 4, 0}, {1, 33, 0}, {64, 9, 37}, {1, 100, 99}, {1, 2, 0}};

// Numbers of a variable's parts, as the kernels read them.
struct PartNumbers {
  Parts parts;
  Floats values;

  // Takes some of `numbers` in turn, from the i-th on.
  template <size_t N>
  PartNumbers(const Parts& parts, const float (&numbers)[N], uint64_t i)
      : parts(parts) {
    for (int64_t part = 0; part < PaddedCount(parts); ++part) {
      values.push_back(Pick(numbers, i + part % parts.count));
    }
  }

  float Of(int64_t value) const {
    return values[(parts.first + value) / parts.block % parts.count];
  }
};

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_PARTS_H_
