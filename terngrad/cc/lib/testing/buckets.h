// Buckets of random gradients for tests of the encoders.

#ifndef TERNGRAD_CC_LIB_TESTING_BUCKETS_H_
#define TERNGRAD_CC_LIB_TESTING_BUCKETS_H_

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/parts.h"

namespace terngrad {
namespace testing {

inline constexpr int64_t kFirsts[] = {0,
                                      1,
                                      97,
                                      (int64_t{1} << 31) - 200,
                                      (int64_t{1} << 32) - 200,
                                      (int64_t{1} << 40) + 13};

inline constexpr NodeKey kNode = {0x0123456789ABCDEF, 0x89ABCDEF, 0xBEEF,
                                  false};

// A source with its own numbers.
struct OwnSource {
  Floats values;
  int64_t size, first;
  uint32_t variable;
  PartNumbers bounds, scales;
  Floats rates = {};

  // What the kernels read, as long as this lives and has no other rates.
  Source ToSource(int max_code) {
    rates.clear();
    for (float scale : scales.values) rates.push_back(RateOf(scale, max_code));
    return {values.data(),        size,        first, variable, bounds.parts,
            bounds.values.data(), rates.data()};
  }
};

// A source of one part.
inline OwnSource SourceOf(Floats values, int64_t first, uint32_t variable,
                          float bound, float scale) {
  const float bounds[] = {bound}, scales[] = {scale};
  const int64_t size = values.size();
  return {std::move(values), size,           first, variable,
          {{}, bounds, 0},   {{}, scales, 0}};
}

inline DrawKey DrawKeyOf(const NodeKey& node, const OwnSource& source) {
  const uint32_t index = node.antithetic ? node.node / 2 : node.node;
  return {node.seed, node.step, index << 16 | source.variable};
}

inline std::vector<Source> ToSources(std::vector<OwnSource>& own,
                                     int max_code) {
  std::vector<Source> sources;
  for (OwnSource& source : own) sources.push_back(source.ToSource(max_code));
  return sources;
}

inline Words Encode(const Encoder& encoder, std::vector<OwnSource> own,
                    const NodeKey& node, int64_t groups) {
  Words words(PlaneCount(encoder.max_code) * groups, kGuardWord);
  const std::vector<Source> sources = ToSources(own, encoder.max_code);
  encoder.encode(sources.data(), sources.size(), node, 0, groups, words.data());
  return words;
}

inline Words Encode(const Kernels& kernels,
                    const std::vector<OwnSource>& sources, const NodeKey& node,
                    int64_t groups) {
  return Encode(*FindEncoder(kernels, "ternary"), sources, node, groups);
}

inline constexpr int kMaxCodes[] = {1, 2, 3, 7, 127};

// Returns values for a source that has none. Half of them lie close to their
// draws, so that all 24 bits of these matter.
inline Floats SomeGradient(const OwnSource& source, const NodeKey& node,
                           Random& random) {
  Floats values = SomeFloats(source.size, random);
  for (int64_t i = 0; i < source.size; ++i) {
    if (random() % 2) continue;
    const int64_t draw = Draw(DrawKeyOf(node, source), source.first + i);
    const int64_t nearby = random() % 2 ? 0 : 300 - int64_t(random() % 601);
    const int64_t levels = Pick(kMaxCodes, random());
    const int64_t whole = random() % levels << 24;
    const float at =
        (whole + draw + nearby) * 0x1p-24f * source.scales.Of(i) / levels;
    const float towards[] = {at, kInfinity, -kInfinity};
    values[i] = std::nextafter(at, Pick(towards, random()));
    if (random() % 2) values[i] = -values[i];
  }
  return values;
}

// A bucket's gradients.
struct Bucket {
  std::vector<OwnSource> sources;
  int64_t size = 0;

  // Adds a source that has no values yet.
  void Add(OwnSource source, Random& random) {
    source.values = SomeGradient(source, kNode, random);
    size += source.size;
    sources.push_back(std::move(source));
  }
};

inline Bucket SomeBucket(int count, Random& random) {
  Bucket bucket;
  for (int i = 0; i < count; ++i) {
    const uint32_t variable = random() & 0xFFFF;
    const int64_t size = random() % 4 ? random() % 300 : 0;
    const Parts parts = random() % 2 ? Parts() : Pick(kParts, random());
    PartNumbers bounds(parts, kBounds, random()),
        scales(parts, kScales, random());
    for (PartNumbers* numbers : {&bounds, &scales}) {
      if (random() % 2) continue;
      const float usual = numbers == &bounds ? kInfinity : 1.0f;
      numbers->values.assign(numbers->values.size(), usual);
    }
    bucket.Add(
        {{}, size, Pick(kFirsts, random()) + i, variable, bounds, scales},
        random);
  }
  return bucket;
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_BUCKETS_H_
