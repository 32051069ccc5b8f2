// Laws of means, and of values less what their codes say.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/parts.h"
#include "terngrad/cc/lib/testing/targets.h"

namespace terngrad {
namespace testing {
namespace {

Floats NaiveDecode(const Words& words, int planes) {
  const Integers sums = IntegersOf(words, planes);
  Floats values;
  for (size_t i = 0; i < std::size(kTargetSizes); ++i) {
    const PartNumbers units = UnitsOf(i);
    for (int64_t e = 0; e < kTargetSizes[i]; ++e) {
      values.push_back(units.Of(e) * static_cast<float>(sums[values.size()]));
    }
  }
  return values;
}

void MeansAreUnitsTimesSums(const Kernels& kernels) {
  Random random(8);
  const int64_t least = GroupsOf(Targets().All().size());
  for (int planes = 1; planes <= kMaxPlanes; ++planes) {
    for (int64_t groups : {least, least + 3}) {
      Try("%d planes", planes);
      const Words words = SomeWords(groups * planes, random);
      CHECK_SAME(Decode(kernels, words, planes, 0, groups),
                 NaiveDecode(words, planes));
    }
  }
}

void AnyPartOfTheMeansCanBeWrittenAlone(const Kernels& kernels) {
  Random random(9);
  const int64_t groups = GroupsOf(Targets().All().size()) + 1;
  for (int planes : {1, 2, 3, 4, 5, 18}) {
    const Words words = SomeWords(groups * planes, random);
    const Floats whole = NaiveDecode(words, planes);
    for (int64_t begin = 0; begin <= groups; ++begin) {
      for (int64_t end = begin; end <= groups; ++end) {
        Try("%d planes, [%d, %d)", planes, static_cast<int>(begin),
            static_cast<int>(end));
        CHECK_SAME(
            Decode(kernels, words, planes, begin, end),
            Part(whole, kWordBits * begin, kWordBits * end, kGuardValue));
      }
    }
  }
}

void LargeTargetsGetTheSameMeans(const Kernels& kernels) {
  Random random(10);
  constexpr int64_t kSize = kStreamedSize + 37;
  constexpr int kPlanes = 3;
  constexpr float kOneUnit = 1.0f;
  const int64_t groups = GroupsOf(kSize + kWordBits);
  const Words words = SomeWords(groups * kPlanes, random);
  const Integers sums = IntegersOf(words, kPlanes);
  Floats memory(kSize + 2 * kWordBits);
  for (int64_t before : {0, 5, 16}) {   // elements of another target
    for (int64_t place : {0, 1, 15}) {  // of the first value, in floats
      Try("after %d, at %d", static_cast<int>(before), static_cast<int>(place));
      const Parts all[] = {{}, {1, 500, 7}, {128 * 1024 + 5, 33, 3}};
      const PartNumbers units(all[before % 3], kUnits, place);
      std::fill(memory.begin(), memory.end(), kGuardValue);
      Floats other(before);
      float* const values = memory.data() + kWordBits / 2 + place;
      const Target targets[] = {
          {other.data(), before, {{}, &kOneUnit}},
          {values, kSize, {units.parts, units.values.data()}}};
      const int64_t middle = groups / 3;
      kernels.decode({words.data(), kPlanes}, targets, 2, middle, groups);
      kernels.decode({words.data(), kPlanes}, targets, 2, 0, middle);
      Floats expected(memory.size(), kGuardValue);
      for (int64_t e = 0; e < kSize; ++e) {
        expected[kWordBits / 2 + place + e] =
            units.Of(e) * static_cast<float>(sums[before + e]);
      }
      CHECK_SAME(memory, expected);
    }
  }
}

// Values of the targets' sizes, and memory for their rounding errors.
struct Residuals {
  std::vector<PartNumbers> units;
  std::vector<Floats> values, left;
  std::vector<Kept> kept;

  Residuals(Random& random, bool in_place) {
    const size_t count = std::size(kTargetSizes);
    for (size_t i = 0; i < count; ++i) {
      units.push_back(UnitsOf(i));
      values.push_back(SomeFloats(kTargetSizes[i], random));
      left.emplace_back(in_place ? values[i]
                                 : Floats(kTargetSizes[i], kGuardValue));
    }
    for (size_t i = 0; i < count; ++i) {
      kept.push_back({in_place ? left[i].data() : values[i].data(),
                      left[i].data(), kTargetSizes[i],
                      Units{units[i].parts, units[i].values.data()}});
    }
  }
};

void ResidualsAreValuesLessTheirCodes(const Kernels& kernels) {
  Random random(17);
  const int64_t groups = GroupsOf(Targets().All().size());
  for (int planes : {2, 3, 5}) {
    for (bool in_place : {false, true}) {
      Try("%d planes, in place: %d", planes, in_place);
      const Words words = SomeWords(groups * planes, random);
      const Floats sent = NaiveDecode(words, planes);
      Residuals all(random, in_place);
      for (int64_t begin : {int64_t{0}, groups / 2}) {  // in two parts
        kernels.subtract({words.data(), planes}, all.kept.data(),
                         all.kept.size(), begin, begin ? groups : groups / 2);
      }
      size_t element = 0;
      for (size_t i = 0; i < all.values.size(); ++i) {
        Floats expected;
        for (float value : all.values[i]) {
          expected.push_back(value - sent[element++]);
        }
        CHECK_SAME(all.left[i], expected);
      }
    }
  }
}

void SumsOfValuesAreRoundedOnce(const Kernels& kernels) {
  Random random(18);
  for (int64_t size : kSizes) {
    Try("size %d", static_cast<int>(size));
    const Floats a = SomeFloats(size, random), b = SomeFloats(size, random);
    Floats expected, got(size), in_place = a;
    for (int64_t i = 0; i < size; ++i) expected.push_back(a[i] + b[i]);
    kernels.add(a.data(), b.data(), size, got.data());
    CHECK_SAME(got, expected);
    kernels.add(in_place.data(), b.data(), size, in_place.data());
    CHECK_SAME(in_place, expected);
  }
}

}  // namespace

Laws DecodeLaws() {
  return {
      LAW(MeansAreUnitsTimesSums),      LAW(AnyPartOfTheMeansCanBeWrittenAlone),
      LAW(LargeTargetsGetTheSameMeans), LAW(ResidualsAreValuesLessTheirCodes),
      LAW(SumsOfValuesAreRoundedOnce),
  };
}

}  // namespace testing
}  // namespace terngrad
