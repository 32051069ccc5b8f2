// Laws of the codes of the kernels for GPUs.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/gpu/entries.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/testing/buckets.h"
#include "terngrad/cc/gpu/testing/launch.h"
#include "terngrad/cc/gpu/testing/laws.h"
#include "terngrad/cc/lib/code_rules.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {
namespace {

constexpr int64_t kFirsts[] = {0,
                               0,
                               1,
                               32,
                               97,
                               128,
                               3 * 128 + 101,
                               (int64_t{1} << 31) - 200,
                               (int64_t{1} << 32) - 200,
                               (int64_t{1} << 40) + 13};

constexpr const char* kEncoders[] = {
    "ternary",   "5-level",          "7-level",         "15-level",
    "255-level", "ternary-feedback", "5-level-feedback"};

NodeKey SomeKey(Random& random) {
  return {random(), static_cast<uint32_t>(random()),
          static_cast<uint32_t>(random() >> 48), random() % 2 == 0};
}

// The gradients of a bucket, for both implementations.
struct Gradients {
  std::vector<Values> values;
  std::vector<Floats> bounds;  // of the parts; empty = none
  std::vector<Source> sources;
  std::vector<Floats> padded_bounds, rates;
  std::vector<terngrad::Source> portable;

  Gradients(const Bucket& bucket, int max_code, Random& random) {
    for (size_t i = 0; i < bucket.count(); ++i) {
      values.emplace_back(static_cast<ValueType>(random() % 3), bucket.sizes[i],
                          random);
      bounds.emplace_back(random() % 3 ? bucket.parts[i].count : 0);
      for (float& bound : bounds.back()) bound = Pick(kBounds, random());
    }
    for (size_t i = 0; i < bucket.count(); ++i) {
      const Parts& parts = bucket.parts[i];
      padded_bounds.push_back(Padded(parts, [&](int64_t part) {
        return bounds[i].empty() ? kInfinity : bounds[i][part];
      }));
      rates.push_back(Padded(parts, [&](int64_t part) {
        return RateOf(bucket.scales[i][part], max_code);
      }));
      const int64_t first = Pick(kFirsts, random());
      const uint32_t variable = random() % 65536;
      sources.push_back({values[i].data(), bucket.sizes[i], bucket.offsets[i],
                         first, parts,
                         bounds[i].empty() ? nullptr : bounds[i].data(),
                         bucket.scales[i].data(), variable, values[i].type});
      portable.push_back({values[i].floats.data(), bucket.sizes[i], first,
                          variable, parts, padded_bounds[i].data(),
                          rates[i].data()});
    }
  }
};

void CheckCodes(const Bucket& bucket, const Gradients& gradients,
                const Encoder& encoder, const NodeKey& key) {
  const size_t size = bucket.rows() * PlaneCount(encoder.max_code);
  Words got(size, 0xDEADBEEF), want(size);
  encoder.encode(gradients.portable.data(), bucket.count(), key, 0,
                 bucket.rows(), want.data());
  Launch(EntryOfEncoder(encoder.name), bucket.blocks(), kThreads,
         gradients.sources.data(), static_cast<int64_t>(bucket.count()), key,
         bucket.rows(), got.data());
  trying = encoder.name + (", " + trying);
  CHECK_SAME(got, want);
}

void CodesAreThoseOfTheCpu(Random& random) {
  for (const char* name : kEncoders) {
    const Encoder& encoder = *FindEncoder(*PortableKernels(), name);
    const Bucket bucket(random);
    const Gradients gradients(bucket, encoder.max_code, random);
    CheckCodes(bucket, gradients, encoder, SomeKey(random));
  }
}

// Makes values that are worth their draws or almost.
void CodesThatAllBitsDecideAreThoseOfTheCpu(Random& random) {
  for (const char* name : kEncoders) {
    const Encoder& encoder = *FindEncoder(*PortableKernels(), name);
    Bucket bucket(random);
    for (Floats& scales : bucket.scales) {
      for (float& scale : scales) scale = encoder.max_code;  // units of 1
    }
    Gradients gradients(bucket, encoder.max_code, random);
    const NodeKey key = SomeKey(random);
    for (size_t i = 0; i < bucket.count(); ++i) {
      Source& source = gradients.sources[i];
      Floats& values = gradients.values[i].floats;
      source.values = values.data();
      source.type = ValueType::kFloat32;
      const DrawKey draws = DrawKeyOf(key, source.variable);
      for (size_t j = 0; j < values.size(); ++j) {
        const float sign = random() % 2 ? 1.0f : -1.0f;
        const uint32_t draw = DrawFor(key, Draw(draws, source.first + j), sign);
        const float more = static_cast<float>(random() % 5) * 0.5f - 1.0f;
        const float whole = random() % encoder.max_code;
        values[j] =
            sign * (whole + (static_cast<float>(draw) + more) * 0x1p-24f);
      }
    }
    CheckCodes(bucket, gradients, encoder, key);
  }
}

}  // namespace

Laws EncodeLaws() {
  return {
      {LAW(CodesAreThoseOfTheCpu), 150},
      {LAW(CodesThatAllBitsDecideAreThoseOfTheCpu), 30},
  };
}

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad
