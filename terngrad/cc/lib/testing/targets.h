// Variables that get means, for tests of the kernels.

#ifndef TERNGRAD_CC_LIB_TESTING_TARGETS_H_
#define TERNGRAD_CC_LIB_TESTING_TARGETS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/parts.h"

namespace terngrad {
namespace testing {

inline constexpr int64_t kTargetSizes[] = {5, 31, 0,   33, 128,
                                           1, 64, 203, 32, 74};
inline constexpr float kUnits[] = {0.1f, -2.5f, 1.0f,   0.0f,      1e-40f,
                                   kNaN, 3e38f, 0.007f, kInfinity, 1.0f / 3};

inline PartNumbers UnitsOf(size_t variable) {
  return PartNumbers(Pick(kParts, variable), kUnits, variable);
}

// Targets of these sizes, and the values that they point to.
struct Targets {
  std::vector<Floats> values;
  std::vector<PartNumbers> units;
  std::vector<Target> targets;

  Targets() {
    for (size_t i = 0; i < std::size(kTargetSizes); ++i) {
      values.emplace_back(kTargetSizes[i], kGuardValue);
      units.push_back(UnitsOf(i));
    }
    for (size_t i = 0; i < std::size(kTargetSizes); ++i) {
      targets.push_back({values[i].data(),
                         kTargetSizes[i],
                         {units[i].parts, units[i].values.data()}});
    }
  }

  Floats All() const {
    Floats all;
    for (const Floats& v : values) all.insert(all.end(), v.begin(), v.end());
    return all;
  }
};

inline Floats Decode(const Kernels& kernels, const Words& words, int planes,
                     int64_t begin, int64_t end) {
  const Targets targets;
  kernels.decode({words.data(), planes}, targets.targets.data(),
                 targets.targets.size(), begin, end);
  return targets.All();
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_TARGETS_H_
