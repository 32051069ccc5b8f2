// Inputs of sums for tests of the kernels.

#ifndef TERNGRAD_CC_LIB_TESTING_SUMS_H_
#define TERNGRAD_CC_LIB_TESTING_SUMS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace testing {

struct Inputs {
  std::vector<Words> words;
  std::vector<Planes> planes;

  void Add(Words input, int input_planes) {
    words.push_back(std::move(input));
    planes.push_back({words.back().data(), input_planes});
  }
};

inline Inputs SomeInputs(int count, int64_t groups, Random& random) {
  Inputs inputs;
  for (int i = 0; i < count; ++i) {
    const int planes = 1 + static_cast<int>(random() % kMaxPlanes);
    inputs.Add(SomeWords(groups * planes, random), planes);
  }
  return inputs;
}

inline Words Sum(const Kernels& kernels, const Inputs& inputs, int planes,
                 int64_t groups) {
  Words total(groups * planes, kGuardWord);
  kernels.sum(inputs.planes.data(), inputs.planes.size(), planes, 0, groups,
              total.data());
  return total;
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_SUMS_H_
