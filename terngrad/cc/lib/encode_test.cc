// Laws of the encoders.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/flushing.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/buckets.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/parts.h"

namespace terngrad {
namespace testing {
namespace {

uint32_t DrawOf(const NodeKey& node, const OwnSource& source, int64_t i,
                bool negative) {
  const uint32_t draw = Draw(DrawKeyOf(node, source), source.first + i);
  const bool is_odd = node.node % 2;
  return node.antithetic && is_odd != negative ? (1 << 24) - 1 - draw : draw;
}

// The definition (terngrad/ternary.py).
int NaiveCode(const OwnSource& source, const NodeKey& node, int max_code,
              int64_t i) {
  const float unit = source.scales.Of(i) * (1.0f / max_code);
  const float x = source.values[i];
  if (!(unit >= 0x1p-100f && unit <= FLT_MAX) || std::isnan(x)) return 0;
  const float magnitude = std::min(std::fabs(x), source.bounds.Of(i));
  if (magnitude < 0x1p-126f) return 0;
  const float threshold =
      std::min(magnitude * (0x1p24f / unit), max_code * 0x1p24f);
  const float whole = std::floor(threshold * 0x1p-24f);
  const float rest = threshold - whole * 0x1p24f;
  const float draw = DrawOf(node, source, i, x < 0.0f);
  const int code = whole + (rest > std::max(draw, 0x1p-126f));
  return x < 0.0f ? -code : code;
}

// Whether an encoder rounds to the nearest level, without draws.
bool IsNearest(const Encoder& encoder) {
  return std::strstr(encoder.name, "-feedback") != nullptr;
}

int NaiveNearest(const OwnSource& source, int max_code, int64_t i) {
  const float unit = source.scales.Of(i) * (1.0f / max_code);
  if (!(unit >= 0x1p-100f && unit <= FLT_MAX)) return 0;
  const float levels = std::fabs(source.values[i]) * (0x1p16f / unit);
  int code = 0;
  while (code < max_code && levels > (code + 0.5f) * 0x1p16f) ++code;
  return source.values[i] < 0.0f ? -code : code;
}

Words NaiveEncode(const std::vector<OwnSource>& sources, const NodeKey& node,
                  int64_t groups, const Encoder& encoder) {
  const int max_code = encoder.max_code;
  Integers codes;
  for (const OwnSource& source : sources) {
    for (int64_t i = 0; i < source.size; ++i) {
      codes.push_back(IsNearest(encoder)
                          ? NaiveNearest(source, max_code, i)
                          : NaiveCode(source, node, max_code, i));
    }
  }
  codes.resize(groups * kWordBits);
  return PlanesOf(codes, PlaneCount(max_code));
}

void CheckCodes(const Kernels& kernels, const std::vector<OwnSource>& sources,
                NodeKey node, int64_t groups) {
  for (const Encoder* encoder = kernels.encoders; encoder->name; ++encoder) {
    for (bool antithetic : {false, true}) {
      node.antithetic = antithetic;
      const Words naive = NaiveEncode(sources, node, groups, *encoder);
      for (bool flush : {false, true}) {
        Words words;
        {
          const Flushing flushing(flush);
          words = Encode(*encoder, sources, node, groups);
        }
        CHECK_SAME(words, naive);
      }
    }
  }
}

void CodesFollowTheirDefinition(const Kernels& kernels) {
  Random random(2);
  for (int64_t size : kSizes) {
    for (int64_t first : kFirsts) {
      for (float scale : kScales) {
        const float bound = Pick(kBounds, random());
        const uint32_t variable = random() & 0xFFFF;
        Try("size %lld, first %lld, bound %g, scale %g, variable %u",
            static_cast<long long>(size), static_cast<long long>(first), bound,
            scale, variable);
        Bucket bucket;
        OwnSource source = SourceOf({}, first, variable, bound, scale);
        source.size = size;
        bucket.Add(source, random);
        CheckCodes(kernels, bucket.sources, kNode, GroupsOf(size));
      }
    }
  }
}

void CodesOfSourcesFollowEachOtherAndThenZeros(const Kernels& kernels) {
  Random random(3);
  for (int count : {0, 1, 2, 3, 5, 8, 20, 2, 3, 5, 8, 20, 2, 3, 5, 8, 20}) {
    Try("%d sources", count);
    const Bucket bucket = SomeBucket(count, random);
    for (int behind : {0, 1, 5}) {
      CheckCodes(kernels, bucket.sources, kNode,
                 GroupsOf(bucket.size) + behind);
    }
  }
}

void CodesOfPartsAreThoseOfSourcesOfTheirOwn(const Kernels& kernels) {
  Random random(16);
  for (int64_t size : {640, 1000, 1024}) {
    for (int64_t first : {0, 77, 128}) {
      Try("size %d, first %d", static_cast<int>(size), static_cast<int>(first));
      const Parts parts = {128, (size + 127) / 128, 0};
      PartNumbers bounds(parts, kBounds, size), scales(parts, kScales, first);
      Bucket whole, alone;
      whole.Add({{}, size, first, 5, bounds, scales}, random);
      for (int64_t i = 0; i < size; i += 128) {
        const auto begin = whole.sources[0].values.begin() + i;
        Floats values(begin, begin + std::min<int64_t>(128, size - i));
        alone.sources.push_back(SourceOf(std::move(values), first + i, 5,
                                         bounds.Of(i), scales.Of(i)));
      }
      CHECK_SAME(Encode(kernels, whole.sources, kNode, GroupsOf(size)),
                 Encode(kernels, alone.sources, kNode, GroupsOf(size)));
    }
  }
}

void ACodeIsZeroUpToItsDrawAndNotAbove(const Kernels& kernels) {
  constexpr int64_t kSize = 5000;
  constexpr int64_t kFirst = (int64_t{1} << 32) - 999;
  OwnSource source = SourceOf({}, kFirst, 7, kInfinity, 1.0f);
  source.size = kSize;
  Floats at(kSize), above(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    at[i] = Draw(DrawKeyOf(kNode, source), kFirst + i) * 0x1p-24f;
    above[i] = -std::nextafter(at[i], 2.0f);
  }
  Integers codes(GroupsOf(kSize) * kWordBits);
  source.values = at;
  CHECK_SAME(Encode(kernels, {source}, kNode, GroupsOf(kSize)),
             PlanesOf(codes, 2));
  std::fill_n(codes.begin(), kSize, -1);
  source.values = above;
  CHECK_SAME(Encode(kernels, {source}, kNode, GroupsOf(kSize)),
             PlanesOf(codes, 2));
}

void DenormalValuesAndThresholdsCountAsZero(const Kernels& kernels) {
  const NodeKey node = {1, 1, 1, false};
  const int64_t element = 409914;  // draws 0: the smallest threshold counts
  CHECK_SAME(Draw({1, 1, 1 << 16 | 1}, element), 0u);
  const struct {
    float value, scale, bound;
    int code;
  } cases[] = {
      {1.0f, 1.0f, kInfinity, 1},
      {0.0f, 0x1p-100f, kInfinity, 0},
      {-0.0f, 0x1p-100f, kInfinity, 0},
      {-0x1p-126f, 0x1p-100f, kInfinity, -1},       // the smallest value
      {0x1.fffffcp-127f, 0x1p-100f, kInfinity, 0},  // a denormal value
      {-0x1p-149f, 0x1p-100f, kInfinity, 0},        //
      {1.0f, 0x1p-100f, 0x1.fffffcp-127f, 0},       // a denormal bound
      {1.0f, 0x1p-100f, 0x1p-126f, 1},              //
      {0x1p-126f, 0x1p24f, kInfinity, 0},           // a threshold of 2^-126
      {0x1.000002p-126f, 0x1p24f, kInfinity, 1},    // above it
      {-0x1p-22f, 0x1p127f, kInfinity, -1},         // 2^-125
      {-0x1p-30f, 0x1p127f, kInfinity, 0},          // a denormal threshold
  };
  for (const auto& c : cases) {
    for (int64_t before : {0, 77, 409}) {
      Try("value %a, scale %a, bound %a, %d before it", c.value, c.scale,
          c.bound, static_cast<int>(before));
      Floats values(before + 1);
      values[before] = c.value;
      Integers codes(GroupsOf(before + 1) * kWordBits);
      codes[before] = c.code;
      const OwnSource source =
          SourceOf(values, element - before, 1, c.bound, c.scale);
      CheckCodes(kernels, {source}, node, GroupsOf(before + 1));
      CHECK_SAME(Encode(kernels, {source}, node, GroupsOf(before + 1)),
                 PlanesOf(codes, 2));
    }
  }
}

void UnusableScalesGiveZeros(const Kernels& kernels) {
  const Floats values(500, -1.0f);
  for (float scale : {0x1p-101f, 0x1.fffffep-101f, 1e-45f, 0.0f, -0.0f, -1.0f,
                      kInfinity, -kInfinity, kNaN}) {
    Try("scale %g", scale);
    const OwnSource source = SourceOf(values, 0, 0, kInfinity, scale);
    CHECK_SAME(Encode(kernels, {source}, kNode, 16), Words(2 * 16));
  }
}

void TheScaleItselfIsAlwaysKept(const Kernels& kernels) {
  for (float scale : {0x1p-100f, 1.0f, 0x1p127f}) {
    Try("scale %g", scale);
    const Floats values(512, -scale);
    const OwnSource source = SourceOf(values, 0, 0, kInfinity, scale);
    CHECK_SAME(Encode(kernels, {source}, kNode, 16), Words(2 * 16, ~0u));
  }
}

void TheScaleIsTheLargestCode(const Kernels& kernels) {
  for (const Encoder* encoder = kernels.encoders; encoder->name; ++encoder) {
    for (float scale : {0x1p-90f, 0.37f, 3.4e38f}) {
      Try("%s, scale %g", encoder->name, scale);
      const Floats values = {scale, -scale, scale * 2, -kInfinity};
      const OwnSource source = SourceOf(values, 77, 5, kInfinity, scale);
      const int planes = PlaneCount(encoder->max_code);
      const int64_t code = encoder->max_code;
      Integers codes(kWordBits);
      std::copy_n(Integers{code, -code, code, -code}.begin(), 4, codes.begin());
      CHECK_SAME(Encode(*encoder, {source}, kNode, 1), PlanesOf(codes, planes));
    }
  }
}

// One draws r, the other the largest draw less r, so between them they round
// half of the values up that lie halfway between two codes.
void AntitheticNodesRoundOppositeWays(const Kernels& kernels) {
  constexpr int64_t kSize = 1000;
  for (const Encoder* encoder = kernels.encoders; encoder->name; ++encoder) {
    if (IsNearest(*encoder)) continue;
    const int max_code = encoder->max_code;
    Random random(11);
    Floats values(kSize);
    Integers expected(kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      expected[i] = 2 * (random() % max_code) + 1;
      if (random() % 2) expected[i] = -expected[i];
      values[i] = expected[i] * 0.5f;
    }
    const float scale = max_code;
    const OwnSource source = SourceOf(values, 3, 9, kInfinity, scale);
    const int planes = PlaneCount(max_code);
    const int64_t groups = GroupsOf(kSize);
    Integers sum(groups * kWordBits);
    for (uint32_t node : {6, 7}) {
      const Words words =
          Encode(*encoder, {source}, {5, 4, node, true}, groups);
      const Integers codes = IntegersOf(words, planes);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += codes[i];
    }
    Try("%s", encoder->name);
    expected.resize(sum.size());
    CHECK_SAME(PlanesOf(sum, 9), PlanesOf(expected, 9));
  }
}

void AnyPartOfTheCodesCanBeWrittenAlone(const Kernels& kernels) {
  Random random(4);
  Bucket bucket = SomeBucket(9, random);
  const int64_t groups = GroupsOf(bucket.size) + 2;
  for (const char* name : {"ternary", "15-level", "5-level-feedback"}) {
    const Encoder& encoder = *FindEncoder(kernels, name);
    const int planes = PlaneCount(encoder.max_code);
    const std::vector<Source> sources =
        ToSources(bucket.sources, encoder.max_code);
    const Words whole = NaiveEncode(bucket.sources, kNode, groups, encoder);
    for (int64_t begin = 0; begin <= groups; ++begin) {
      for (int64_t end = begin; end <= groups; ++end) {
        Try("%s [%d, %d)", name, static_cast<int>(begin),
            static_cast<int>(end));
        Words words(planes * groups, kGuardWord);
        encoder.encode(sources.data(), sources.size(), kNode, begin, end,
                       words.data());
        CHECK_SAME(words,
                   Part(whole, planes * begin, planes * end, kGuardWord));
      }
    }
  }
}

}  // namespace

Laws EncodeLaws() {
  return {
      LAW(CodesFollowTheirDefinition),
      LAW(CodesOfSourcesFollowEachOtherAndThenZeros),
      LAW(CodesOfPartsAreThoseOfSourcesOfTheirOwn),
      LAW(ACodeIsZeroUpToItsDrawAndNotAbove),
      LAW(DenormalValuesAndThresholdsCountAsZero),
      LAW(UnusableScalesGiveZeros),
      LAW(TheScaleItselfIsAlwaysKept),
      LAW(TheScaleIsTheLargestCode),
      LAW(AntitheticNodesRoundOppositeWays),
      LAW(AnyPartOfTheCodesCanBeWrittenAlone),
  };
}

}  // namespace testing
}  // namespace terngrad
