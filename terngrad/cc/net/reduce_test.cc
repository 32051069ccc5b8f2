// Laws of the arithmetic of the mesh.

#include "terngrad/cc/net/reduce.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/mesh.h"
#include "terngrad/cc/net/testing/laws.h"
#include "terngrad/cc/net/testing/operations.h"

namespace terngrad {
namespace testing {
namespace {

void SumsOfFloatsAreAddedInATree() {
  const float big = 1e8f;
  const std::vector<float> a{big}, b{1}, c{-big}, d{1}, e{3};
  float total;
  TreeSum({a.data(), b.data(), c.data(), d.data(), e.data()}, 1, &total);
  CHECK(total == ((a[0] + b[0]) + (c[0] + d[0])) + e[0]);
  TreeSum({a.data(), b.data(), c.data()}, 1, &total);
  CHECK(total == (a[0] + b[0]) + c[0]);
}

// All float16, and the values halfway between two of them.
void HalvesAreRoundedToTheNearestAndToEvenInTies() {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const float value = FloatOfHalf(half);
    CHECK(HalfOfFloat(value) == half);
    CHECK(HalfOfFloat(-value) == (half | 0x8000));
    const float next = half + 1 < 0x7c00 ? FloatOfHalf(half + 1) : 65536.0f;
    const float middle = value + (next - value) / 2;
    CHECK(HalfOfFloat(middle) == half + half % 2);
    CHECK(HalfOfFloat(std::nextafter(middle, 0.0f)) == half);
    CHECK(HalfOfFloat(std::nextafter(middle, 1e6f)) == half + 1);
  }
  CHECK(HalfOfFloat(1e6f) == 0x7c00);
  CHECK(std::isinf(FloatOfHalf(0x7c00)) && std::isnan(FloatOfHalf(0x7e01)));
  CHECK(HalfOfFloat(std::nanf("")) == 0x7e00);
}

void MaximaOfNaNAreNaN() {
  const Plan plan(Bytes("x", Kind::kMaxima, 3), 3);
  const float none = std::nanf("");
  const float parts[3][3] = {{1, none, 2}, {3, 5, none}, {2, 4, 6}};
  std::vector<const uint8_t*> rows;
  for (const auto& part : parts) {
    rows.push_back(reinterpret_cast<const uint8_t*>(part));
  }
  float largest[3];
  plan.Add(rows, 3, reinterpret_cast<uint8_t*>(largest));
  CHECK(largest[0] == 3);
  CHECK(std::isnan(largest[1]) && std::isnan(largest[2]));
}

}  // namespace

Laws ReduceLaws() {
  return {
      LAW(SumsOfFloatsAreAddedInATree),
      LAW(HalvesAreRoundedToTheNearestAndToEvenInTies),
      LAW(MaximaOfNaNAreNaN),
  };
}

}  // namespace testing
}  // namespace terngrad
