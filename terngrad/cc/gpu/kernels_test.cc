// kernels_test: checks that the kernels for GPUs, run on the host, have the
// bits of the portable ones.
//
// Vectors get their exact size, so that the address sanitizer sees every access
// outside them.

#include "terngrad/cc/lib/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "terngrad/cc/gpu/entries.h"
#include "terngrad/cc/gpu/host_entries.h"
#include "terngrad/cc/gpu/scalars.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/lib/code_rules.h"
#include "terngrad/cc/lib/flushing.h"
#include "terngrad/cc/lib/inverse.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/statistics.h"

namespace terngrad {
namespace gpu {
namespace {

// ---- Checks ----------------------------------------------------------------

const char* law = "";  // being checked
std::string trying;    // its current case
int64_t compared = 0;  // numbers, in all laws

bool Same(uint32_t a, uint32_t b) { return a == b; }
bool Same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || BitsOf(a) == BitsOf(b);
}

// Ends the program unless both have the same bits; all NaNs are equal.
template <class T>
void CheckSame(const std::vector<T>& got, const std::vector<T>& want,
               const char* what) {
  for (size_t i = 0; i < want.size(); ++i, ++compared) {
    if (got.size() == want.size() && Same(got[i], want[i])) continue;
    std::printf("%s (%s): %s: %zu of %zu, %zu: %a, not %a\n", law,
                trying.c_str(), what, i, want.size(), got.size(),
                static_cast<double>(got[i]), static_cast<double>(want[i]));
    std::exit(1);
  }
}

// Runs an entry point as the driver does.
template <class... Arguments>
void Launch(const char* entry, int64_t blocks, int threads,
            Arguments... arguments) {
  const HostEntry run = FindHostEntry(entry);
  if (!run) {
    std::printf("no entry %s\n", entry);
    std::exit(1);
  }
  void* places[] = {&arguments...};
  run(places, blocks, threads);
}

// ---- Random buckets --------------------------------------------------------

using Words = std::vector<uint32_t>;
using Floats = std::vector<float>;
using Random = std::mt19937_64;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kSizes[] = {0,   1,   2,   15,   31,   32,   33,  96,
                              127, 128, 129, 255,  256,  257,  300, 512,
                              513, 640, 999, 1024, 1500, 4097, 5000};
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
constexpr Parts kParts[] = {{},
                            {},
                            {1, 2, 0},
                            {1, 3, 0},
                            {1, 16, 3},
                            {1, 33, 0},
                            {1, 100, 99},
                            {1, 64, (int64_t{1} << 33) + 7},
                            {7, 5, 0},
                            {32, 4, 0},
                            {64, 9, 37},
                            {128, 50, 0},
                            {384, 20, 1000},
                            {int64_t{1} << 33, 3, (int64_t{1} << 33) - 100}};
constexpr float kBounds[] = {kInfinity, 0.3f, 0x1p-20f, 0.0f, 1e-40f, 3e38f};
constexpr float kScales[] = {1.0f,      0.37f, 0x1p-100f, 0x1p-101f,
                             0.0f,      -1.0f, 1e-40f,    3.4e38f,
                             kInfinity, kNaN,  0x1p24f,   1e-20f};
constexpr float kEdges[] = {0.0f,     -0.0f,   0x1p-149f, -1e-40f,    0x1p-126f,
                            0x1p-99f, 3.4e38f, kInfinity, -kInfinity, kNaN};
constexpr const char* kEncoders[] = {
    "ternary",   "5-level",          "7-level",         "15-level",
    "255-level", "ternary-feedback", "5-level-feedback"};

template <class T, size_t N>
const T& Pick(const T (&items)[N], Random& random) {
  return items[random() % N];
}

float Uniform(Random& random) {  // in [-1, 1)
  return static_cast<float>(static_cast<int32_t>(random() >> 32)) * 0x1p-31f;
}

float SomeFloat(Random& random) {
  const uint64_t kind = random() % 16;
  if (kind == 0) return Pick(kEdges, random);
  if (kind == 1) return FloatOf(static_cast<uint32_t>(random()));
  return Uniform(random);
}

Floats SomeFloats(int64_t count, Random& random) {
  Floats values(count);
  for (float& x : values) x = SomeFloat(random);
  return values;
}

Words SomeWords(int64_t count, Random& random) {
  Words words(count);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  return words;
}

// Numbers of a type, and their conversion to float32.
struct Values {
  ValueType type;
  Floats floats;
  std::vector<uint16_t> halves;

  Values(ValueType type, int64_t size, Random& random) : type(type) {
    if (type == ValueType::kFloat32) {
      floats = SomeFloats(size, random);
      return;
    }
    for (int64_t i = 0; i < size; ++i) {
      const bool is_half = type == ValueType::kFloat16;
      // Most bfloat16 numbers are too large or too small to matter.
      const uint16_t bits = is_half || random() % 8 == 0
                                ? random()
                                : BitsOf(Uniform(random)) >> 16;
      halves.push_back(bits);
      floats.push_back(is_half ? FloatOfHalf(bits) : FloatOfBfloat(bits));
    }
  }

  const void* data() const {
    return halves.empty() ? static_cast<const void*>(floats.data())
                          : halves.data();
  }
};

// A number for each part, as the CPU's kernels read them.
template <class Number>
Floats Padded(const Parts& parts, Number number) {
  Floats numbers;
  for (int64_t i = 0; i < PaddedCount(parts); ++i) {
    numbers.push_back(number(i % parts.count));
  }
  return numbers;
}

// The sizes and parts of a bucket's variables.
struct Bucket {
  std::vector<int64_t> sizes, offsets;
  std::vector<Parts> parts;
  std::vector<Floats> scales;  // of the parts
  int64_t elements = 0;

  explicit Bucket(Random& random) {
    const int count = 1 + random() % (random() % 4 ? 6 : 40);
    for (int i = 0; i < count; ++i) {
      sizes.push_back(Pick(kSizes, random));
      offsets.push_back(elements);
      elements += sizes.back();
      parts.push_back(Pick(kParts, random));
      scales.emplace_back(parts.back().count);
      for (float& scale : scales.back()) {
        scale = random() % 3 ? 1.0f : Pick(kScales, random);
      }
    }
    trying = std::to_string(count) + " variables of";
    for (size_t i = 0; i < sizes.size(); ++i) {
      trying += " " + std::to_string(sizes[i]) + "/" +
                std::to_string(parts[i].block) + "/" +
                std::to_string(parts[i].count) + "/" +
                std::to_string(parts[i].first);
    }
  }

  size_t count() const { return sizes.size(); }
  int64_t rows() const { return BlocksOf(elements, kWordBits); }
  int64_t blocks() const { return BlocksOf(rows(), kBlockRows); }
};

NodeKey SomeKey(Random& random) {
  return {random(), static_cast<uint32_t>(random()),
          static_cast<uint32_t>(random() >> 48), random() % 2 == 0};
}

// ---- Laws ------------------------------------------------------------------

void HalvesAreConvertedExactly(Random&) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    trying = std::to_string(bits);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    const float size = exponent == 31 ? (fraction ? kNaN : kInfinity)
                       : exponent == 0
                           ? std::ldexp(static_cast<float>(fraction), -24)
                           : std::ldexp(1024.0f + fraction, exponent - 25);
    CheckSame<float>({FloatOfHalf(bits)}, {sign * size}, "float16");
    CheckSame<float>({FloatOfBfloat(bits)}, {FloatOf(bits << 16)}, "bfloat16");
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
    CheckSame(got, Floats(5, InverseOf(x)), "inverse");
  }
  for (const float x : {0x1p-100f, 0x1.fffffep-100f, 0x1.8p63f, 0x1p64f}) {
    CheckSame<float>({CorrectedInverse(x, 1.0f / x)}, {InverseOf(x)}, "far");
  }
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
      for (float& bound : bounds.back()) bound = Pick(kBounds, random);
    }
    for (size_t i = 0; i < bucket.count(); ++i) {
      const Parts& parts = bucket.parts[i];
      padded_bounds.push_back(Padded(parts, [&](int64_t part) {
        return bounds[i].empty() ? kInfinity : bounds[i][part];
      }));
      rates.push_back(Padded(parts, [&](int64_t part) {
        return RateOf(bucket.scales[i][part], max_code);
      }));
      const int64_t first = Pick(kFirsts, random);
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
  CheckSame(got, want, encoder.name);
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
    CheckSame(got, want, "sum");
  }
}

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
    CheckSame(got[i], want[i], "means");
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
    CheckSame(got[i], want[i], "residuals");
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
    for (int j = 0; j < 4; ++j) {
      for (size_t i = 0; i < bucket.count(); ++i) {
        CheckSame(got.arrays[j][i], want.arrays[j][i], EntryOfRule(rule));
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
    CheckSame(memory[i], want[i], "corrected");
  }
}

void StatisticsAreThoseOfTheCpu(Random& random) {
  const Flushing flushing(true);  // as in all of the CPU's callers
  struct Case {
    int64_t size;
    Parts parts;
  };
  std::vector<Case> cases;
  for (const int64_t size :
       {0, 1, 63, 64, 65, 130, 4095, 4096, 4097, 8192, 70001, 100000, 300000}) {
    cases.push_back({size, {}});
    for (const int64_t count : {2, 3, 10, 16, 40, 1001, 4096, 4097}) {
      cases.push_back({size, {1, count}});
    }
    for (const int64_t block : {128, 640, 4096, 4224, 8192, 290048}) {
      const int64_t count = BlocksOf(size, block);
      if (count > 1) cases.push_back({size, {block, count}});
    }
  }
  std::shuffle(cases.begin(), cases.end(), random);
  for (size_t begin = 0, end; begin < cases.size(); begin = end) {
    end = std::min(cases.size(), begin + 1 + random() % 6);
    std::vector<Values> values;
    std::vector<std::vector<double>> scratch;
    std::vector<Measured> items;
    int64_t pieces = 0, totals = 0, parts = 0;
    trying.clear();
    for (size_t i = begin; i < end; ++i) {
      const Case& own = cases[i];
      trying += std::to_string(own.size) + "/" +
                std::to_string(own.parts.block) + "/" +
                std::to_string(own.parts.count) + " ";
      values.emplace_back(static_cast<ValueType>(random() % 3), own.size,
                          random);
      if (random() % 2) {  // else there are NaNs in most parts
        values.back() = Values(ValueType::kFloat32, 0, random);
        for (int64_t j = 0; j < own.size; ++j) {
          values.back().floats.push_back(std::ldexp(
              Uniform(random), static_cast<int>(random() % 60) - 30));
        }
      }
      if (own.size == 65) {  // the sum is denormal
        values.back() = Values(ValueType::kFloat32, 0, random);
        values.back().floats.resize(own.size);
        values.back().floats[0] = 0x1.8p-126f;
        values.back().floats[32] = -0x1p-126f;
      }
      const Pieces own_pieces = PiecesOf(own.size, own.parts);
      scratch.emplace_back(BlocksOf(ScratchBytes(own_pieces), 8));
      items.push_back({nullptr, own.size, own.parts, own_pieces, pieces, totals,
                       parts, nullptr, values.back().type});
      pieces += PieceBlocks(own_pieces);
      totals += TotalBlocks(own_pieces, own.parts);
      parts += own.parts.count;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].values = values[i].data();
      items[i].scratch = scratch[i].data();
    }
    std::vector<Floats> got(3, Floats(parts, -1.0f)),
        want(3, Floats(parts, -1.0f));
    const Measured* const table = items.data();
    const int64_t count = items.size();
    Launch("terngrad_measure", pieces, kPieceThreads, table, count);
    Launch("terngrad_total", totals, kTotalThreads, table, count, got[0].data(),
           got[1].data(), got[2].data());
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t first = items[i].first_part;
      Statistics statistics(*PortableKernels(), values[i].floats.data(),
                            items[i].size, items[i].parts);
      for (int64_t j = 0; j < statistics.pieces(); ++j) statistics.Measure(j);
      statistics.Write(0, statistics.parts(), want[0].data() + first,
                       want[1].data() + first, want[2].data() + first);
    }
    CheckSame(got[0], want[0], "sums");
    CheckSame(got[1], want[1], "squares");
    CheckSame(got[2], want[2], "magnitudes");
  }
}

// ---- All laws --------------------------------------------------------------

constexpr struct {
  const char* name;
  int rounds;
  void (*check)(Random& random);
} kLaws[] = {{"HalvesAreConvertedExactly", 1, HalvesAreConvertedExactly},
             {"InversesAreRounded", 1, InversesAreRounded},
             {"CodesAreThoseOfTheCpu", 150, CodesAreThoseOfTheCpu},
             {"CodesThatAllBitsDecideAreThoseOfTheCpu", 30,
              CodesThatAllBitsDecideAreThoseOfTheCpu},
             {"SumsAreThoseOfTheCpu", 10, SumsAreThoseOfTheCpu},
             {"MeansAreThoseOfTheCpu", 300, MeansAreThoseOfTheCpu},
             {"ResidualsAreThoseOfTheCpu", 100, ResidualsAreThoseOfTheCpu},
             {"UpdatesAreThoseOfTheCpu", 60, UpdatesAreThoseOfTheCpu},
             {"CorrectedGradientsAreThoseOfTheCpu", 60,
              CorrectedGradientsAreThoseOfTheCpu},
             {"StatisticsAreThoseOfTheCpu", 2, StatisticsAreThoseOfTheCpu}};

}  // namespace
}  // namespace gpu
}  // namespace terngrad

// kernels_test [ROUNDS]: so many times the usual number of rounds.
int main(int argc, char** argv) {
  using namespace terngrad;
  const int times = argc > 1 ? std::atoi(argv[1]) : 1;
  for (const auto& one : gpu::kLaws) {
    gpu::law = one.name;
    gpu::Random random(1);
    for (int i = 0; i < times * one.rounds; ++i) {
      const Flushing flushing(i % 2 == 0);
      one.check(random);
    }
  }
  std::printf("%zu laws, %lld numbers\n", std::size(gpu::kLaws),
              static_cast<long long>(gpu::compared));
  return 0;
}
