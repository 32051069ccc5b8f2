// Laws of sums of codes.

#include <cstddef>
#include <cstdint>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/sums.h"

namespace terngrad {
namespace testing {
namespace {

Words NaiveSum(const Inputs& inputs, int planes, int64_t groups) {
  Integers total(groups * kWordBits);
  for (size_t i = 0; i < inputs.words.size(); ++i) {
    const Integers addend =
        IntegersOf(inputs.words[i], inputs.planes[i].planes);
    for (size_t e = 0; e < total.size(); ++e) total[e] += addend[e];
  }
  return PlanesOf(total, planes);
}

void SumsAreThoseOfIntegersModuloTwoToThePlanes(const Kernels& kernels) {
  Random random(5);
  for (int planes = 1; planes <= kMaxPlanes; ++planes) {
    for (int64_t groups : {0, 1, 5, 63, 64, 65, 130}) {
      for (int count : {0, 1, 2, 7}) {
        Try("%d planes, %d words each, %d inputs", planes,
            static_cast<int>(groups), count);
        const Inputs inputs = SomeInputs(count, groups, random);
        CHECK_SAME(Sum(kernels, inputs, planes, groups),
                   NaiveSum(inputs, planes, groups));
      }
    }
  }
}

void AnInputOfAnyPlanesCanBeSummed(const Kernels& kernels) {
  Random random(6);
  for (int from = 1; from <= kMaxPlanes; ++from) {
    for (int to = 1; to <= kMaxPlanes; ++to) {
      Try("%d planes in %d", from, to);
      Inputs inputs;
      inputs.Add(SomeWords(3 * from, random), from);
      CHECK_SAME(Sum(kernels, inputs, to, 3), NaiveSum(inputs, to, 3));
    }
  }
}

void TheSumOver65536NodesFits(const Kernels& kernels) {
  Integers codes(kWordBits, 1), sums(kWordBits, 65536);
  codes[0] = -1;
  sums[0] = -65536;
  const auto sum_of_256 = [&](const Words& words, int planes, int to) {
    Inputs inputs;
    for (int i = 0; i < 256; ++i) inputs.Add(words, planes);
    return Sum(kernels, inputs, to, 1);
  };
  CHECK_SAME(sum_of_256(sum_of_256(PlanesOf(codes, 2), 2, 10), 10, 18),
             PlanesOf(sums, 18));
}

void AnyPartOfASumCanBeWrittenAlone(const Kernels& kernels) {
  Random random(7);
  constexpr int64_t kGroups = 150;
  const Inputs inputs = SomeInputs(3, kGroups, random);
  for (int planes : {1, 2, 3, 4, 5, 18}) {
    const Words whole = NaiveSum(inputs, planes, kGroups);
    for (int64_t begin : {0, 1, 63, 64, 65, 100, 149, 150}) {
      for (int64_t end : {0, 1, 2, 63, 64, 65, 66, 128, 129, 149, 150}) {
        if (end < begin) continue;
        Try("%d planes, [%d, %d)", planes, static_cast<int>(begin),
            static_cast<int>(end));
        Words total(kGroups * planes, kGuardWord);
        kernels.sum(inputs.planes.data(), inputs.planes.size(), planes, begin,
                    end, total.data());
        CHECK_SAME(total,
                   Part(whole, begin * planes, end * planes, kGuardWord));
      }
    }
  }
}

}  // namespace

Laws SumLaws() {
  return {
      LAW(SumsAreThoseOfIntegersModuloTwoToThePlanes),
      LAW(AnInputOfAnyPlanesCanBeSummed),
      LAW(TheSumOver65536NodesFits),
      LAW(AnyPartOfASumCanBeWrittenAlone),
  };
}

}  // namespace testing
}  // namespace terngrad
