// Laws of what the kernels for GPUs do with means.

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
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {
namespace {

// Sums of a bucket and their units, for both implementations.
struct Sums {
  Words words;
  Planes planes;
  UnitRule rule;
  std::vector<Floats> units;

  Sums(const Bucket& bucket, Random& random) {
    const int count = 1 + random() % (random() % 3 ? 5 : kMaxPlanes);
    words = SomeWords(bucket.rows() * count, random);
    planes = {words.data(), count};
    rule = {1.0f / (1 + random() % 7), static_cast<float>(1 + random() % 9)};
    for (size_t i = 0; i < bucket.count(); ++i) {
      units.push_back(Padded(bucket.parts[i], [&](int64_t part) {
        return MeanUnitOf(bucket.scales[i][part] * rule.share, rule.divisor);
      }));
    }
  }
};

void MeansAreThoseOfTheCpu(Random& random) {
  const Bucket bucket(random);
  const Sums sums(bucket, random);
  std::vector<Floats> got, want;
  for (const int64_t size : bucket.sizes) {
    got.emplace_back(size, -1.0f);
    want.emplace_back(size, -1.0f);
  }
  std::vector<Target> targets;
  std::vector<terngrad::Target> portable;
  for (size_t i = 0; i < bucket.count(); ++i) {
    targets.push_back({got[i].data(), bucket.sizes[i], bucket.offsets[i],
                       bucket.parts[i], bucket.scales[i].data()});
    portable.push_back({want[i].data(),
                        bucket.sizes[i],
                        {bucket.parts[i], sums.units[i].data()}});
  }
  PortableKernels()->decode(sums.planes, portable.data(), bucket.count(), 0,
                            bucket.rows());
  Launch("terngrad_decode", bucket.blocks(), kThreads, sums.planes,
         static_cast<const Target*>(targets.data()),
         static_cast<int64_t>(bucket.count()), sums.rule, bucket.rows());
  for (size_t i = 0; i < bucket.count(); ++i) {
    CHECK_SAME(got[i], want[i]);
  }
}

void ResidualsAreThoseOfTheCpu(Random& random) {
  const Bucket bucket(random);
  const Sums codes(bucket, random);
  std::vector<Floats> values, got, want;
  std::vector<Kept> kept;
  std::vector<terngrad::Kept> portable;
  for (const int64_t size : bucket.sizes) {
    values.push_back(SomeFloats(size, random));
    got.push_back(values.back());
    want.emplace_back(size);
  }
  for (size_t i = 0; i < bucket.count(); ++i) {
    // In place, or not.
    kept.push_back({random() % 2 ? got[i].data() : values[i].data(),
                    got[i].data(), bucket.sizes[i], bucket.offsets[i],
                    bucket.parts[i], bucket.scales[i].data()});
    portable.push_back({values[i].data(),
                        want[i].data(),
                        bucket.sizes[i],
                        {bucket.parts[i], codes.units[i].data()}});
  }
  PortableKernels()->subtract(codes.planes, portable.data(), bucket.count(), 0,
                              bucket.rows());
  Launch("terngrad_subtract", bucket.blocks(), kThreads, codes.planes,
         static_cast<const Kept*>(kept.data()),
         static_cast<int64_t>(bucket.count()), codes.rule, bucket.rows());
  for (size_t i = 0; i < bucket.count(); ++i) {
    for (int64_t j = 0; j < bucket.sizes[i]; ++j) {
      const int64_t part = PartOf(bucket.parts[i], j);
      if (codes.units[i][part] == kInfinity) want[i][j] = 0.0f;
    }
    CHECK_SAME(got[i], want[i]);
  }
}

// The arrays of a bucket's variables that are trained.
struct Training {
  std::vector<Floats> arrays[4];  // weights, slots, averages

  float* Of(int which, size_t i) { return arrays[which][i].data(); }
};

void UpdatesAreThoseOfTheCpu(Random& random) {
  for (const Rule rule : {Rule::kMomentum, Rule::kKerasMomentum,
                          Rule::kNesterov, Rule::kAdam, Rule::kRmsProp}) {
    const Bucket bucket(random);
    const Sums sums(bucket, random);
    const Update update = {rule, 0.1f + random() % 2, 0.9f, 0.1f, 0.001f, 1e-7f,
                           0.25f};
    Training got;
    for (auto& array : got.arrays) {
      for (const int64_t size : bucket.sizes) {
        array.push_back(SomeFloats(size, random));
      }
    }
    Training want = got;
    std::vector<Trained> trained;
    std::vector<terngrad::Trained> portable;
    for (size_t i = 0; i < bucket.count(); ++i) {
      const bool averages = random() % 2;
      trained.push_back({got.Of(0, i),
                         {got.Of(1, i), got.Of(2, i)},
                         averages ? got.Of(3, i) : nullptr,
                         bucket.sizes[i],
                         bucket.offsets[i],
                         bucket.parts[i],
                         bucket.scales[i].data()});
      portable.push_back({want.Of(0, i),
                          {want.Of(1, i), want.Of(2, i)},
                          averages ? want.Of(3, i) : nullptr,
                          bucket.sizes[i],
                          {bucket.parts[i], sums.units[i].data()}});
    }
    PortableKernels()->update(sums.planes, portable.data(), bucket.count(),
                              update, 0, bucket.rows());
    Launch(EntryOfRule(rule), bucket.blocks(), kThreads, sums.planes,
           static_cast<const Trained*>(trained.data()),
           static_cast<int64_t>(bucket.count()), update, sums.rule,
           bucket.rows());
    trying = EntryOfRule(rule) + (", " + trying);
    for (int j = 0; j < 4; ++j) {
      for (size_t i = 0; i < bucket.count(); ++i) {
        CHECK_SAME(got.arrays[j][i], want.arrays[j][i]);
      }
    }
  }
}

void CorrectedGradientsAreThoseOfTheCpu(Random& random) {
  const Bucket bucket(random);
  std::vector<Values> values;
  std::vector<Floats> memory, want;
  std::vector<Corrected> items;
  for (size_t i = 0; i < bucket.count(); ++i) {
    values.emplace_back(static_cast<ValueType>(random() % 3), bucket.sizes[i],
                        random);
    memory.push_back(SomeFloats(bucket.sizes[i], random));
    want.emplace_back(bucket.sizes[i]);
    PortableKernels()->add(values[i].floats.data(), memory[i].data(),
                           bucket.sizes[i], want[i].data());
  }
  for (size_t i = 0; i < bucket.count(); ++i) {
    items.push_back({values[i].data(), memory[i].data(), memory[i].data(),
                     bucket.sizes[i], bucket.offsets[i], values[i].type});
  }
  Launch("terngrad_correct", bucket.blocks(), kThreads,
         static_cast<const Corrected*>(items.data()),
         static_cast<int64_t>(bucket.count()), bucket.rows());
  for (size_t i = 0; i < bucket.count(); ++i) {
    CHECK_SAME(memory[i], want[i]);
  }
}

}  // namespace

Laws MeanLaws() {
  return {
      {LAW(MeansAreThoseOfTheCpu), 300},
      {LAW(ResidualsAreThoseOfTheCpu), 100},
      {LAW(UpdatesAreThoseOfTheCpu), 60},
      {LAW(CorrectedGradientsAreThoseOfTheCpu), 60},
  };
}

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad
