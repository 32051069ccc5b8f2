// Laws of the sums of codes of the kernels for GPUs.

#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/testing/launch.h"
#include "terngrad/cc/gpu/testing/laws.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {
namespace {

void SumsAreThoseOfTheCpu(Random& random) {
  for (int planes = 1; planes <= kMaxPlanes; ++planes) {
    const int64_t count = 1 + random() % 5, rows = random() % 600;
    trying = std::to_string(planes) + " planes, " + std::to_string(rows) +
             " rows, " + std::to_string(count) + " inputs";
    std::vector<Words> words;
    std::vector<Planes> inputs;
    for (int64_t i = 0; i < count; ++i) {
      const int own = 1 + random() % (random() % 2 ? 4 : kMaxPlanes);
      words.push_back(SomeWords(rows * own, random));
      inputs.push_back({words.back().data(), own});
    }
    Words got(rows * planes, 0xDEADBEEF), want(rows * planes);
    PortableKernels()->sum(inputs.data(), count, planes, 0, rows, want.data());
    Launch("terngrad_sum", BlocksOf(rows, kThreads), kThreads,
           static_cast<const Planes*>(inputs.data()), count, planes, rows,
           got.data());
    CHECK_SAME(got, want);
  }
}

}  // namespace

Laws SumLaws() {
  return {
      {LAW(SumsAreThoseOfTheCpu), 10},
  };
}

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad
