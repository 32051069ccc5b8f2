// Laws of the updates of weights.

#include <cstdint>
#include <iterator>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/targets.h"
#include "terngrad/cc/lib/testing/trained.h"

namespace terngrad {
namespace testing {
namespace {

void CheckUpdate(const Kernels& kernels, const std::vector<int64_t>& sizes,
                 int planes, int64_t groups, int64_t begin, int64_t end,
                 Random& random) {
  Try("%d planes, [%d, %d)", planes, static_cast<int>(begin),
      static_cast<int>(end));
  const Words words = SomeWords(groups * planes, random);
  Variables got(sizes), want(sizes);
  for (const Update& update : kUpdates) {
    got.Prepare(update);
    want.Prepare(update);
    got.Run(kernels, words, planes, update, begin, end);
    want.RunNaively(words, planes, update, begin, end);
  }
  got.CheckEquals(want);
}

void UpdatesUseTheMeans(const Kernels& kernels) {
  Random random(12);
  const std::vector<int64_t> sizes(std::begin(kTargetSizes),
                                   std::end(kTargetSizes));
  const int64_t groups = GroupsOf(Targets().All().size());
  for (int planes = 1; planes <= kMaxPlanes; ++planes) {
    CheckUpdate(kernels, sizes, planes, groups + 3, 0, groups + 3, random);
  }
  for (int64_t begin = 0; begin <= groups; ++begin) {
    for (int64_t end = begin; end <= groups; ++end) {
      CheckUpdate(kernels, sizes, 3, groups, begin, end, random);
    }
  }
}

void LargeVariablesAreUpdatedPartByPart(const Kernels& kernels) {
  Random random(13);
  for (int64_t size : {1023, 1024, 1025, 2048, 5000}) {
    const int64_t groups = GroupsOf(7 + size);
    CheckUpdate(kernels, {7, size}, 3, groups, 0, groups, random);
    CheckUpdate(kernels, {7, size}, 3, groups, 5, groups - 1, random);
  }
}

}  // namespace

Laws UpdateLaws() {
  return {
      LAW(UpdatesUseTheMeans),
      LAW(LargeVariablesAreUpdatedPartByPart),
  };
}

}  // namespace testing
}  // namespace terngrad
