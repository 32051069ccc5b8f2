// Laws of the rules of single values that only the kernels for GPUs have.

#include "terngrad/cc/gpu/scalars.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "terngrad/cc/gpu/testing/laws.h"
#include "terngrad/cc/lib/inverse.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {
namespace {

void HalvesAreConvertedExactly(Random&) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    trying = std::to_string(bits);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    const float size = exponent == 31 ? (fraction ? kNaN : kInfinity)
                       : exponent == 0
                           ? std::ldexp(static_cast<float>(fraction), -24)
                           : std::ldexp(1024.0f + fraction, exponent - 25);
    CHECK_SAME(FloatOfHalf(bits), sign * size);
    CHECK_SAME(FloatOfBfloat(bits), FloatOf(bits << 16));
  }
}

// Whatever the last bits of the approximation are.
void InversesAreRounded(Random& random) {
  for (uint32_t i = random() % 16; i < 1 << 23; i += 16) {
    const uint32_t fraction = i + 16 < 1 << 23 ? i : (1 << 23) - 1;
    trying = std::to_string(fraction);
    const float x = FloatOf(fraction | 0x3F800000);
    const uint32_t approximation = BitsOf(1.0f / x);
    Floats got;
    for (int more = -2; more <= 2; ++more) {
      got.push_back(CorrectedInverse(x, FloatOf(approximation + more)));
    }
    CHECK_SAME(got, Floats(5, InverseOf(x)));
  }
  for (const float x : {0x1p-100f, 0x1.fffffep-100f, 0x1.8p63f, 0x1p64f}) {
    CHECK_SAME(CorrectedInverse(x, 1.0f / x), InverseOf(x));
  }
}

}  // namespace

Laws ScalarLaws() {
  return {
      {LAW(HalvesAreConvertedExactly), 1},
      {LAW(InversesAreRounded), 1},
  };
}

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad
