// kernels_test [PATH]: checks the laws of a path's kernels, or those of every
// path, without a framework. Exits with 77 if the build or this processor does
// not have the path.
//
// Vectors get their exact size, so that the address sanitizer sees every access
// outside them.

#include "terngrad/cc/lib/kernels.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/flushing.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/statistics.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace terngrad {
namespace {

// ---- Checks ----------------------------------------------------------------

const char* law = "";   // being checked
char trying[200] = "";  // its current case
constexpr int kSkip = 77;

#define TRY(...) std::snprintf(trying, sizeof(trying), __VA_ARGS__)

// Ends the program unless both have the same bits; all NaNs are equal.
#define CHECK_SAME(got, want) \
  CheckSame(got, want, __FILE__, __LINE__, #got " is " #want)

bool Same(uint32_t a, uint32_t b) { return a == b; }
bool Same(const std::string& a, const std::string& b) { return a == b; }
bool Same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || !std::memcmp(&a, &b, sizeof(a));
}

std::string Text(uint32_t x) {
  char text[20];
  std::snprintf(text, sizeof(text), "0x%08x", x);
  return text;
}
std::string Text(const std::string& x) { return x; }
std::string Text(double x) {
  char text[80];
  std::snprintf(text, sizeof(text), "%.17g = %a", x, x);
  return text;
}

template <class T>
void CheckSame(const T& got, const T& want, const char* file, int line,
               const std::string& what) {
  if (Same(got, want)) return;
  std::printf("%s:%d: %s(%s): not so: %s: %s, not %s\n", file, line, law,
              trying, what.c_str(), Text(got).c_str(), Text(want).c_str());
  std::exit(1);
}

template <class T>
void CheckSame(const std::vector<T>& got, const std::vector<T>& want,
               const char* file, int line, const std::string& what) {
  CheckSame(static_cast<uint32_t>(got.size()),
            static_cast<uint32_t>(want.size()), file, line,
            what + ", their sizes");
  for (size_t i = 0; i < got.size(); ++i) {
    if (Same(got[i], want[i])) continue;
    CheckSame(got[i], want[i], file, line, what + " at " + std::to_string(i));
  }
}

// ---- Shared by the laws ----------------------------------------------------

using Words = std::vector<uint32_t>;
using Floats = std::vector<float>;
using Integers = std::vector<int64_t>;
using Random = std::mt19937_64;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kGuardWord = 0xDEADBEEF;
constexpr float kGuardValue = -12345.0f;

// Around the sizes of a word, of one and two groups of draws, and of a block of
// statistics.
constexpr int64_t kSizes[] = {0, 1, 31, 32, 33, 127, 128, 129, 257, 4097};
constexpr int64_t kFirsts[] = {0,
                               1,
                               97,
                               (int64_t{1} << 31) - 200,
                               (int64_t{1} << 32) - 200,
                               (int64_t{1} << 40) + 13};
constexpr float kBounds[] = {kInfinity, 0.3f, 0x1p-20f, 0.0f, 1e-40f, 3e38f};
constexpr float kScales[] = {1.0f,      0.37f, 0x1p-100f, 0x1p-101f,
                             0.0f,      -1.0f, 1e-40f,    3.4e38f,
                             kInfinity, kNaN,  0x1p24f,   1e-20f};
constexpr float kEdges[] = {0.0f,     -0.0f,   0x1p-149f, -1e-40f,    0x1p-126f,
                            0x1p-99f, 3.4e38f, kInfinity, -kInfinity, kNaN};

template <class T, size_t N>
const T& Pick(const T (&items)[N], uint64_t i) {
  return items[i % N];
}

float Uniform(Random& random) {  // in [-1, 1)
  return static_cast<float>(static_cast<int32_t>(random() >> 32)) * 0x1p-31f;
}

float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

Floats SomeFloats(int64_t count, Random& random) {
  Floats values(count);
  for (float& x : values) {
    const uint64_t kind = random() % 8;
    x = Uniform(random);
    if (kind == 0) x = Pick(kEdges, random());
    if (kind == 1) x = FloatOf(static_cast<uint32_t>(random()));
  }
  return values;
}

Words SomeWords(int64_t count, Random& random) {
  Words words(count);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  return words;
}

int64_t GroupsOf(int64_t elements) {
  return (elements + kWordBits - 1) / kWordBits;
}

// Converts a bucket to bit planes by their definition, and back.
Words PlanesOf(const Integers& values, int planes) {
  Words words(GroupsOf(values.size()) * planes);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int j = 0; j < planes; ++j) {
      const uint32_t bit = static_cast<uint64_t>(values[i]) >> j & 1;
      words[i / kWordBits * planes + j] |= bit << i % kWordBits;
    }
  }
  return words;
}

Integers IntegersOf(const Words& words, int planes) {
  Integers values(words.size() / planes * kWordBits);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int j = 0; j < planes; ++j) {
      const int64_t bit =
          words[i / kWordBits * planes + j] >> i % kWordBits & 1;
      const int64_t power = int64_t{1} << j;
      values[i] += bit * (j == planes - 1 ? -power : power);
    }
  }
  return values;
}

// Returns `whole` with guards outside [begin, end).
template <class T>
std::vector<T> Part(const std::vector<T>& whole, int64_t begin, int64_t end,
                    T guard) {
  std::vector<T> part(whole.size(), guard);
  end = std::min<int64_t>(end, whole.size());
  for (int64_t i = begin; i < end; ++i) part[i] = whole[i];
  return part;
}

// ---- Draws and paths -------------------------------------------------------

void PathsAreFoundByTheirNames(const Kernels& kernels) {
  CHECK_SAME(std::string(FindKernels(kernels.path)->path),
             std::string(kernels.path));
  const std::string supported = SupportedPaths();
  CHECK_SAME(std::string(FindKernels("")->path),
             supported.substr(0, supported.find(',')));
  CHECK_SAME(supported.find(kernels.path) != std::string::npos ? 1u : 0u, 1u);
  CHECK_SAME(FindKernels("sse") ? 1u : 0u, 0u);
}

// Known answers from Random123 (Salmon et al.).
void PhiloxGivesKnownAnswers(const Kernels&) {
  const struct {
    DrawKey key;
    uint64_t block;
    Words words;
  } answers[] = {
      {{0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~uint64_t{0}, ~0u, ~0u},
       ~uint64_t{0},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x299f31d0a4093822, 0x13198a2e, 0x03707344},
       0x85a308d3243f6a88,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& answer : answers) {
    const PhiloxBlock block = Philox(answer.key, answer.block);
    CHECK_SAME(Words(block.words, block.words + 4), answer.words);
  }
}

// From terngrad/draws.py.
void DrawsAreThoseOfPython(const Kernels&) {
  const DrawKey key = {0x0123456789ABCDEF, 0x89ABCDEF, 0xBEEFF00D};
  const struct {
    uint64_t element;
    uint32_t draw;
  } answers[] = {{0, 0xd12b32},
                 {17, 0x5d1359},
                 {47, 0xc9bdd5},
                 {129, 0x5edf87},
                 {255, 0xf15f35},
                 {300, 0x804e5f},
                 {(uint64_t{1} << 31) + 100, 0x8d55},
                 {(uint64_t{1} << 32) + 1000, 0x3778f},
                 {(uint64_t{1} << 40) + 5, 0x5354d5}};
  for (const auto& answer : answers) {
    CHECK_SAME(Draw(key, answer.element), answer.draw);
  }
}

// ---- Statistics ------------------------------------------------------------

BlockStats NaiveStats(const Floats& values) {
  float sums[64] = {}, squares[64] = {};
  BlockStats stats = {0.0, 0.0, 0};
  for (size_t i = 0; i < values.size(); ++i) {
    sums[i % 64] += values[i];
    // Volatile: rounds even if the compiler may fuse operations.
    const volatile float square = values[i] * values[i];
    squares[i % 64] += square;
    stats.max_bits = std::max(stats.max_bits, BitsOf(values[i]) & 0x7FFFFFFF);
  }
  for (float sum : sums) stats.sum += sum;
  for (float square : squares) stats.sum_of_squares += square;
  return stats;
}

void CheckStats(const Kernels& kernels, const Floats& values) {
  const BlockStats stats = kernels.stats(values.data(), values.size());
  const BlockStats naive = NaiveStats(values);
  CHECK_SAME(stats.sum, naive.sum);
  CHECK_SAME(stats.sum_of_squares, naive.sum_of_squares);
  CHECK_SAME(stats.max_bits, naive.max_bits);
}

void StatsAreSumsOf64InterleavedSequences(const Kernels& kernels) {
  Random random(1);
  for (int64_t size :
       {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096}) {
    TRY("size %d", static_cast<int>(size));
    Floats values(size);
    for (float& x : values) {
      x = std::ldexp(Uniform(random), static_cast<int>(random() % 60) - 30);
    }
    CheckStats(kernels, values);
    CheckStats(kernels, Floats(size, 3e38f));  // both sums overflow
    CheckStats(kernels, SomeFloats(size, random));
  }
}

void ANaNShowsInMaxBits(const Kernels& kernels) {
  for (uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FC00000u, 0xFFFFFFFFu}) {
    for (size_t i = 0; i < 100; ++i) {
      TRY("%#x at %d", bits, static_cast<int>(i));
      Floats values(100, kInfinity);
      std::memcpy(&values[i], &bits, sizeof(bits));
      CHECK_SAME(kernels.stats(values.data(), 100).max_bits, bits & 0x7FFFFFFF);
    }
  }
}

void ColumnStatsAreSumsInTheOrderOfTheRows(const Kernels& kernels) {
  Random random(14);
  for (int64_t columns : {1, 2, 15, 16, 17, 48, 250}) {
    for (int64_t rows : {0, 1, 7, 8, 9, 64}) {
      for (int64_t missing : {int64_t{0}, int64_t{1}, columns - 1}) {
        TRY("%d columns, %d rows but for %d", static_cast<int>(columns),
            static_cast<int>(rows), static_cast<int>(missing));
        const int64_t size = std::max<int64_t>(rows * columns - missing, 0);
        const Floats values = SomeFloats(size, random);
        Floats sums(columns, kNaN), squares(columns, kNaN);
        Words bits(columns, kGuardWord);
        kernels.column_stats(values.data(), size, columns, sums.data(),
                             squares.data(), bits.data());
        Floats all_sums(columns), all_squares(columns);
        Words all_bits(columns);
        for (int64_t i = 0; i < size; ++i) {
          const volatile float square = values[i] * values[i];
          all_sums[i % columns] += values[i];
          all_squares[i % columns] += square;
          all_bits[i % columns] =
              std::max(all_bits[i % columns], BitsOf(values[i]) & 0x7FFFFFFF);
        }
        CHECK_SAME(sums, all_sums);
        CHECK_SAME(squares, all_squares);
        CHECK_SAME(bits, all_bits);
      }
    }
  }
}

void StatisticsOfPartsAreThoseOfTheirValues(const Kernels& kernels) {
  Random random(15);
  const std::pair<int64_t, Parts> cases[] = {{0, {}},
                                             {9000, {}},
                                             {5000, {1, 10}},
                                             {70000, {1, 1001}},
                                             {70001, {1, 4097}},
                                             {130, {128, 2}},
                                             {70000, {128, 547}},
                                             {70000, {8192, 9}},
                                             {640, {1, 40}}};
  for (const auto& [size, parts] : cases) {
    TRY("%d values, %d parts", static_cast<int>(size),
        static_cast<int>(parts.count));
    Floats values(size);
    for (float& x : values) x = Uniform(random);
    Statistics statistics(kernels, values.data(), size, parts);
    for (int64_t i = statistics.pieces(); i-- > 0;) statistics.Measure(i);
    std::vector<Floats> got(3, Floats(parts.count, kNaN));
    for (int64_t i = 0; i < parts.count; ++i) {
      statistics.Write(i, i + 1, got[0].data(), got[1].data(), got[2].data());
    }
    std::vector<double> sums(parts.count), squares(parts.count);
    Floats largest(parts.count);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t part = i / parts.block % parts.count;
      sums[part] += values[i];
      squares[part] += double{values[i]} * values[i];
      largest[part] = std::max(largest[part], std::fabs(values[i]));
    }
    CHECK_SAME(got[2], largest);
    for (int64_t i = 0; i < parts.count; ++i) {
      const double values_of_part = 1.0 * size / parts.count;
      CHECK_SAME(
          std::fabs(got[0][i] - sums[i]) <= 1e-6 * values_of_part ? 1u : 0u,
          1u);
      CHECK_SAME(
          std::fabs(got[1][i] - squares[i]) <= 1e-6 * squares[i] ? 1u : 0u, 1u);
    }
    Floats whole(3 * parts.count, kNaN);
    float* const begin = whole.data();
    statistics.Write(0, parts.count, begin, begin + parts.count,
                     begin + 2 * parts.count);
    for (int j = 0; j < 3; ++j) {
      CHECK_SAME(Floats(begin + j * parts.count, begin + (j + 1) * parts.count),
                 got[j]);
    }
  }
}

// ---- Encoding --------------------------------------------------------------

// The parts of the i-th variable: one, columns, blocks, or a range of them.
constexpr Parts kParts[] = {{},           {1, 3, 0},  {},         {7, 5, 0},
                            {1, 16, 3},   {32, 4, 0}, {1, 33, 0}, {64, 9, 37},
                            {1, 100, 99}, {1, 2, 0}};

// Numbers of a variable's parts, as the kernels read them.
struct PartNumbers {
  Parts parts;
  Floats values;

  // Takes some of `numbers` in turn, from the i-th on.
  template <size_t N>
  PartNumbers(const Parts& parts, const float (&numbers)[N], uint64_t i)
      : parts(parts) {
    for (int64_t part = 0; part < PaddedCount(parts); ++part) {
      values.push_back(Pick(numbers, i + part % parts.count));
    }
  }

  float Of(int64_t value) const {
    return values[(parts.first + value) / parts.block % parts.count];
  }
};

constexpr NodeKey kNode = {0x0123456789ABCDEF, 0x89ABCDEF, 0xBEEF, false};

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
OwnSource SourceOf(Floats values, int64_t first, uint32_t variable, float bound,
                   float scale) {
  const float bounds[] = {bound}, scales[] = {scale};
  const int64_t size = values.size();
  return {std::move(values), size,           first, variable,
          {{}, bounds, 0},   {{}, scales, 0}};
}

DrawKey DrawKeyOf(const NodeKey& node, const OwnSource& source) {
  const uint32_t index = node.antithetic ? node.node / 2 : node.node;
  return {node.seed, node.step, index << 16 | source.variable};
}

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

std::vector<Source> ToSources(std::vector<OwnSource>& own, int max_code) {
  std::vector<Source> sources;
  for (OwnSource& source : own) sources.push_back(source.ToSource(max_code));
  return sources;
}

Words Encode(const Encoder& encoder, std::vector<OwnSource> own,
             const NodeKey& node, int64_t groups) {
  Words words(PlaneCount(encoder.max_code) * groups, kGuardWord);
  const std::vector<Source> sources = ToSources(own, encoder.max_code);
  encoder.encode(sources.data(), sources.size(), node, 0, groups, words.data());
  return words;
}

Words Encode(const Kernels& kernels, const std::vector<OwnSource>& sources,
             const NodeKey& node, int64_t groups) {
  return Encode(*FindEncoder(kernels, "ternary"), sources, node, groups);
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

constexpr int kMaxCodes[] = {1, 2, 3, 7, 127};

// Returns values for a source that has none. Half of them lie close to their
// draws, so that all 24 bits of these matter.
Floats SomeGradient(const OwnSource& source, const NodeKey& node,
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

Bucket SomeBucket(int count, Random& random) {
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

void CodesFollowTheirDefinition(const Kernels& kernels) {
  Random random(2);
  for (int64_t size : kSizes) {
    for (int64_t first : kFirsts) {
      for (float scale : kScales) {
        const float bound = Pick(kBounds, random());
        const uint32_t variable = random() & 0xFFFF;
        TRY("size %lld, first %lld, bound %g, scale %g, variable %u",
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
    TRY("%d sources", count);
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
      TRY("size %d, first %d", static_cast<int>(size), static_cast<int>(first));
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
      TRY("value %a, scale %a, bound %a, %d before it", c.value, c.scale,
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
    TRY("scale %g", scale);
    const OwnSource source = SourceOf(values, 0, 0, kInfinity, scale);
    CHECK_SAME(Encode(kernels, {source}, kNode, 16), Words(2 * 16));
  }
}

void TheScaleItselfIsAlwaysKept(const Kernels& kernels) {
  for (float scale : {0x1p-100f, 1.0f, 0x1p127f}) {
    TRY("scale %g", scale);
    const Floats values(512, -scale);
    const OwnSource source = SourceOf(values, 0, 0, kInfinity, scale);
    CHECK_SAME(Encode(kernels, {source}, kNode, 16), Words(2 * 16, ~0u));
  }
}

void TheScaleIsTheLargestCode(const Kernels& kernels) {
  for (const Encoder* encoder = kernels.encoders; encoder->name; ++encoder) {
    for (float scale : {0x1p-90f, 0.37f, 3.4e38f}) {
      TRY("%s, scale %g", encoder->name, scale);
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
    TRY("%s", encoder->name);
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
        TRY("%s [%d, %d)", name, static_cast<int>(begin),
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

// ---- Sums ------------------------------------------------------------------

struct Inputs {
  std::vector<Words> words;
  std::vector<Planes> planes;

  void Add(Words input, int input_planes) {
    words.push_back(std::move(input));
    planes.push_back({words.back().data(), input_planes});
  }
};

Inputs SomeInputs(int count, int64_t groups, Random& random) {
  Inputs inputs;
  for (int i = 0; i < count; ++i) {
    const int planes = 1 + static_cast<int>(random() % kMaxPlanes);
    inputs.Add(SomeWords(groups * planes, random), planes);
  }
  return inputs;
}

Words NaiveSum(const Inputs& inputs, int planes, int64_t groups) {
  Integers total(groups * kWordBits);
  for (size_t i = 0; i < inputs.words.size(); ++i) {
    const Integers addend =
        IntegersOf(inputs.words[i], inputs.planes[i].planes);
    for (size_t e = 0; e < total.size(); ++e) total[e] += addend[e];
  }
  return PlanesOf(total, planes);
}

Words Sum(const Kernels& kernels, const Inputs& inputs, int planes,
          int64_t groups) {
  Words total(groups * planes, kGuardWord);
  kernels.sum(inputs.planes.data(), inputs.planes.size(), planes, 0, groups,
              total.data());
  return total;
}

void SumsAreThoseOfIntegersModuloTwoToThePlanes(const Kernels& kernels) {
  Random random(5);
  for (int planes = 1; planes <= kMaxPlanes; ++planes) {
    for (int64_t groups : {0, 1, 5, 63, 64, 65, 130}) {
      for (int count : {0, 1, 2, 7}) {
        TRY("%d planes, %d words each, %d inputs", planes,
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
      TRY("%d planes in %d", from, to);
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
        TRY("%d planes, [%d, %d)", planes, static_cast<int>(begin),
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

// ---- Decoding --------------------------------------------------------------

constexpr int64_t kTargetSizes[] = {5, 31, 0, 33, 128, 1, 64, 203, 32, 74};
constexpr float kUnits[] = {0.1f, -2.5f, 1.0f,   0.0f,      1e-40f,
                            kNaN, 3e38f, 0.007f, kInfinity, 1.0f / 3};

PartNumbers UnitsOf(size_t variable) {
  return PartNumbers(Pick(kParts, variable), kUnits, variable);
}

// Targets of these sizes, and the values that they point to.
struct Targets {
  std::vector<Floats> values;
  std::vector<PartNumbers> units;
  std::vector<Target> targets;

  Targets() {
    for (size_t i = 0; i < std::size(kTargetSizes); ++i) {
      values.emplace_back(kTargetSizes[i], kGuardValue);
      units.push_back(UnitsOf(i));
    }
    for (size_t i = 0; i < std::size(kTargetSizes); ++i) {
      targets.push_back({values[i].data(),
                         kTargetSizes[i],
                         {units[i].parts, units[i].values.data()}});
    }
  }

  Floats All() const {
    Floats all;
    for (const Floats& v : values) all.insert(all.end(), v.begin(), v.end());
    return all;
  }
};

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

Floats Decode(const Kernels& kernels, const Words& words, int planes,
              int64_t begin, int64_t end) {
  const Targets targets;
  kernels.decode({words.data(), planes}, targets.targets.data(),
                 targets.targets.size(), begin, end);
  return targets.All();
}

void MeansAreUnitsTimesSums(const Kernels& kernels) {
  Random random(8);
  const int64_t least = GroupsOf(Targets().All().size());
  for (int planes = 1; planes <= kMaxPlanes; ++planes) {
    for (int64_t groups : {least, least + 3}) {
      TRY("%d planes", planes);
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
        TRY("%d planes, [%d, %d)", planes, static_cast<int>(begin),
            static_cast<int>(end));
        CHECK_SAME(
            Decode(kernels, words, planes, begin, end),
            Part(whole, kWordBits * begin, kWordBits * end, kGuardValue));
      }
    }
  }
}

// Values of the targets' sizes, and memory for what their codes do not say.
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
      TRY("%d planes, in place: %d", planes, in_place);
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
    TRY("size %d", static_cast<int>(size));
    const Floats a = SomeFloats(size, random), b = SomeFloats(size, random);
    Floats expected, got(size), in_place = a;
    for (int64_t i = 0; i < size; ++i) expected.push_back(a[i] + b[i]);
    kernels.add(a.data(), b.data(), size, got.data());
    CHECK_SAME(got, expected);
    kernels.add(in_place.data(), b.data(), size, in_place.data());
    CHECK_SAME(in_place, expected);
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
      TRY("after %d, at %d", static_cast<int>(before), static_cast<int>(place));
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

// ---- Updates ---------------------------------------------------------------

constexpr Update kUpdates[] = {
    {Rule::kMomentum, 0.03f, 0.9f, 0.0f, 0.0f, 0.0f, 9.0f},
    {Rule::kMomentum, 0.0f, 0.9f, 0.0f, 0.0f, 0.0f, 1e-4f},
    {Rule::kKerasMomentum, 0.03f, 0.9f, 0.0f, 0.0f, 0.0f, 0.3f},
    {Rule::kNesterov, 0.03f, 0.9f, 0.0f, 0.0f, 0.0f, 0.3f},
    {Rule::kAdam, 0.03f, 0.0f, 0.1f, 0.001f, 1e-7f, 0.3f},
    {Rule::kRmsProp, 0.03f, 0.9f, 0.0f, 0.1f, 1.0f, 0.3f}};

// Weights of these sizes, two slots of each, and averages of every second.
struct Variables {
  std::vector<Floats> weights, slots[2], averages;

  explicit Variables(const std::vector<int64_t>& sizes) {
    Random random(11);
    std::uniform_real_distribution<float> some(-2.0f, 2.0f);
    for (const int64_t size : sizes) {
      for (auto* floats : {&weights, &slots[0], &slots[1], &averages}) {
        floats->emplace_back(size);
        for (float& value : floats->back()) {
          value = random() % 8 ? some(random) : -0.0f;
        }
      }
    }
  }

  // Makes the slot positive that a rule takes the root of.
  void Prepare(const Update& update) {
    if (SlotCount(update.rule) == 1) return;
    for (Floats& slot : slots[update.rule == Rule::kAdam ? 1 : 0]) {
      for (float& value : slot) value = std::abs(value);
    }
  }

  void Run(const Kernels& kernels, const Words& words, int planes,
           const Update& update, int64_t begin, int64_t end) {
    std::vector<PartNumbers> units;
    for (size_t i = 0; i < weights.size(); ++i) units.push_back(UnitsOf(i));
    std::vector<Trained> all;
    for (size_t i = 0; i < weights.size(); ++i) {
      float* const second =
          SlotCount(update.rule) == 2 ? slots[1][i].data() : nullptr;
      all.push_back({weights[i].data(),
                     {slots[0][i].data(), second},
                     i % 2 ? averages[i].data() : nullptr,
                     static_cast<int64_t>(weights[i].size()),
                     {units[i].parts, units[i].values.data()}});
    }
    kernels.update({words.data(), planes}, all.data(), all.size(), update,
                   begin, end);
  }

  void RunNaively(const Words& words, int planes, const Update& update,
                  int64_t begin, int64_t end) {
    const Integers sums = IntegersOf(words, planes);
    int64_t e = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const PartNumbers units = UnitsOf(i);
      for (size_t j = 0; j < weights[i].size(); ++j, ++e) {
        if (e < kWordBits * begin || e >= kWordBits * end) continue;
        Change(update, units.Of(j) * static_cast<float>(sums[e]), weights[i][j],
               slots[0][i][j], slots[1][i][j]);
        float& average = averages[i][j];
        const float gain = update.gain;
        if (i % 2) average = (average + gain * weights[i][j]) / (1 + gain);
      }
    }
  }

  void CheckEquals(const Variables& other) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      CHECK_SAME(weights[i], other.weights[i]);
      CHECK_SAME(slots[0][i], other.slots[0][i]);
      CHECK_SAME(slots[1][i], other.slots[1][i]);
      CHECK_SAME(averages[i], other.averages[i]);
    }
  }

 private:
  static void Change(const Update& update, float g, float& w, float& first,
                     float& second) {
    const auto [rule, rate, momentum, mean_share, square_share, epsilon, gain] =
        update;
    switch (rule) {
      case Rule::kMomentum:
        first = momentum * first + g;
        w = w - rate * first;
        break;
      case Rule::kKerasMomentum:
        first = momentum * first - rate * g;
        w = w + first;
        break;
      case Rule::kNesterov:
        first = momentum * first - rate * g;
        w = w + (momentum * first - rate * g);
        break;
      case Rule::kAdam:
        first = first + (g - first) * mean_share;
        second = second + (g * g - second) * square_share;
        w = w - first * rate / (std::sqrt(second) + epsilon);
        break;
      case Rule::kRmsProp:
        first = first + (g * g - first) * square_share;
        second = momentum * second + g * rate / std::sqrt(first + epsilon);
        w = w - second;
        break;
    }
  }
};

void CheckUpdate(const Kernels& kernels, const std::vector<int64_t>& sizes,
                 int planes, int64_t groups, int64_t begin, int64_t end,
                 Random& random) {
  TRY("%d planes, [%d, %d)", planes, static_cast<int>(begin),
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

// ---- Prefix code -----------------------------------------------------------

using Octets = std::vector<uint8_t>;

// Returns integers in planes: sums of `largest` codes, of which a share
// `density` is not zero, or, where there are many levels, integers of which so
// many differ from zero by a random spread.
Words SomeIntegers(int64_t rows, int largest, double density, Random& random) {
  std::bernoulli_distribution is_nonzero(density);
  Integers values(kWordBits * rows);
  if (largest > 31) {
    const int64_t spread = 1 + random() % largest;
    for (int64_t& value : values) {
      if (!is_nonzero(random)) continue;
      const int64_t bound = random() % 8 ? spread : largest;
      value = static_cast<int64_t>(random() % (2 * bound + 1)) - bound;
    }
    return PlanesOf(values, PlaneCount(largest));
  }
  for (int64_t& value : values) {
    for (int i = 0; i < largest; ++i) {
      if (is_nonzero(random)) value += random() % 2 ? 1 : -1;
    }
  }
  return PlanesOf(values, PlaneCount(largest));
}

// Adds a stream of bits: whole words of 64.
void Append(const std::vector<bool>& bits, Octets* octets) {
  const size_t first = octets->size();
  octets->resize(first + (bits.size() + 63) / 64 * 8);
  for (size_t i = 0; i < bits.size(); ++i) {
    (*octets)[first + i / 8] |= bits[i] << i % 8;
  }
}

// Says bit by bit what terngrad/prefix_code.py says of streams of codes.
Octets NaivePack(const Words& words) {
  const Integers values = IntegersOf(words, PlaneCount(1));
  std::vector<bool> filled, several, place, fours, nonzero, negative;
  for (size_t i = 0; i < values.size(); i += 4) {
    std::vector<bool> quad;
    for (int j = 0; j < 4; ++j) quad.push_back(values[i + j] != 0);
    const auto count = std::count(quad.begin(), quad.end(), true);
    nonzero.insert(nonzero.end(), quad.begin(), quad.end());
    filled.push_back(count > 0);
    if (count > 0) several.push_back(count > 1);
    if (count > 1) fours.insert(fours.end(), quad.begin(), quad.end());
    if (count == 1) {
      const auto at = std::find(quad.begin(), quad.end(), true) - quad.begin();
      place.push_back(at & 1);
      place.push_back(at & 2);
    }
  }
  Octets quads, ones, packed(8);
  for (const auto& each : {filled, several, place, fours}) Append(each, &quads);
  Append(nonzero, &ones);
  packed[0] = quads.size() > ones.size();
  const Octets& where = packed[0] ? ones : quads;
  packed.insert(packed.end(), where.begin(), where.end());
  for (const int64_t value : values) {
    if (value) negative.push_back(value < 0);
  }
  Append(negative, &packed);
  const auto* raw = reinterpret_cast<const uint8_t*>(words.data());
  const size_t size = words.size() * sizeof(uint32_t);
  return packed.size() < size ? packed : Octets(raw, raw + size);
}

Octets Pack(const Kernels& kernels, const Words& words, int largest) {
  const int64_t rows = words.size() / PlaneCount(largest);
  Octets packed(words.size() * sizeof(uint32_t));
  packed.resize(kernels.pack(words.data(), largest, rows, packed.data()));
  return packed;
}

void CheckComesBack(const Kernels& kernels, const Octets& packed, int largest,
                    int64_t rows, const Words& words) {
  Words back(words.size(), kGuardWord);
  CHECK_SAME(static_cast<uint32_t>(kernels.unpack(packed.data(), packed.size(),
                                                  largest, rows, back.data())),
             1u);
  CHECK_SAME(back, words);
}

void ThePrefixCodeIsThatOfItsFormat(const Kernels& kernels) {
  Random random(11);
  for (const double density : {0.0, 0.02, 0.15, 0.4, 1.0}) {
    for (const int64_t rows : {0, 1, 2, 5, 8, 63, 64, 65, 300}) {
      TRY("density %g, %d rows", density, static_cast<int>(rows));
      const Words words = SomeIntegers(rows, 1, density, random);
      const Octets packed = Pack(kernels, words, 1);
      const Octets naive = NaivePack(words);
      CHECK_SAME(Words(packed.begin(), packed.end()),
                 Words(naive.begin(), naive.end()));
      CheckComesBack(kernels, packed, 1, rows, words);
    }
  }
}

void WhatIsPackedComesBack(const Kernels& kernels) {
  Random random(13);
  for (const int largest : {1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127,
                            508, 2032, kMaxSum}) {
    for (const double density : {0.0, 0.003, 0.1, 0.4, 0.97, 1.0}) {
      for (const int64_t rows : {1, 2, 7, 511, 512, 513, 1025}) {
        TRY("largest %d, density %g, %d rows", largest, density,
            static_cast<int>(rows));
        const Words words = SomeIntegers(rows, largest, density, random);
        const Octets packed = Pack(kernels, words, largest);
        const Octets same = Pack(*PortableKernels(), words, largest);
        CHECK_SAME(Words(packed.begin(), packed.end()),
                   Words(same.begin(), same.end()));
        CheckComesBack(kernels, packed, largest, rows, words);
      }
    }
  }
}

// The example of docs/wire-format.md.
void TheDocumentedBytesArePacked(const Kernels& kernels) {
  Integers values(12 * kWordBits);
  values[2] = values[9] = 1, values[8] = values[383] = -1;
  const Octets packed = Pack(kernels, PlanesOf(values, 2), 1);
  Octets expected(56);
  expected[8] = 5, expected[19] = 0x80;  // quads 0, 2 and 95
  expected[24] = 2;                      // several in the second of these
  expected[32] = 0x0e;                   // places 2 and 3
  expected[40] = 3;                      // the first two of quad 2
  expected[48] = 0x0a;                   // signs
  CHECK_SAME(Words(packed.begin(), packed.end()),
             Words(expected.begin(), expected.end()));
}

void BytesOfNoCodeAreRefusedOrGiveIntegersInRange(const Kernels& kernels) {
  Random random(12);
  int codes = 0;
  for (int round = 0; round < 3000; ++round) {
    const int largest =
        std::vector<int>{1, 2, 4, 9, 31, 32, 100, 127, 2032}[random() % 9];
    TRY("round %d, largest %d", round, largest);
    const int64_t rows = 1 + random() % (round % 10 ? 70 : 1200);
    const double density = round % 4 ? 0.1 : 0.9;
    const Words words = SomeIntegers(rows, largest, density, random);
    Octets packed = Pack(kernels, words, largest);
    if (round % 3 == 0) {
      packed.resize(random() % (packed.size() + 9));
    } else {
      for (int i = 0; i < round % 7; ++i) {
        packed[random() % packed.size()] ^= 1 << random() % 8;
      }
    }
    Words back(words.size());
    const Octets exact(packed);  // with no room behind it
    if (!kernels.unpack(exact.data(), exact.size(), largest, rows,
                        back.data())) {
      continue;
    }
    if (packed.size() == words.size() * sizeof(uint32_t)) continue;  // planes
    ++codes;
    for (const int64_t value : IntegersOf(back, PlaneCount(largest))) {
      CHECK_SAME(static_cast<uint32_t>(std::abs(value) <= largest), 1u);
    }
  }
  CHECK_SAME(static_cast<uint32_t>(codes > 300), 1u);
}

// ---- Paths -----------------------------------------------------------------

void ThePathGivesThePortableOnesBits(const Kernels& kernels) {
  const Kernels& portable = *PortableKernels();
  Random random(10);
  for (int round = 0; round < 20; ++round) {
    TRY("round %d", round);
    const Floats block = SomeFloats(random() % (kStatsBlock + 1), random);
    const BlockStats stats = kernels.stats(block.data(), block.size());
    const BlockStats same = portable.stats(block.data(), block.size());
    CHECK_SAME(stats.sum, same.sum);
    CHECK_SAME(stats.sum_of_squares, same.sum_of_squares);
    CHECK_SAME(stats.max_bits, same.max_bits);

    const NodeKey node = {random(), static_cast<uint32_t>(random()),
                          static_cast<uint32_t>(random() & 0xFFFF),
                          random() % 2 == 1};
    const Bucket bucket = SomeBucket(30, random);
    const int64_t groups = GroupsOf(bucket.size);
    for (const Encoder* encoder = kernels.encoders; encoder->name; ++encoder) {
      CHECK_SAME(Encode(*encoder, bucket.sources, node, groups),
                 Encode(*FindEncoder(portable, encoder->name), bucket.sources,
                        node, groups));
    }

    const int planes = 1 + static_cast<int>(random() % kMaxPlanes);
    const Inputs inputs = SomeInputs(5, groups, random);
    CHECK_SAME(Sum(kernels, inputs, planes, groups),
               Sum(portable, inputs, planes, groups));

    const Words words = SomeWords(40 * planes, random);
    CHECK_SAME(Decode(kernels, words, planes, 0, 40),
               Decode(portable, words, planes, 0, 40));

    for (const Update& update : kUpdates) {
      Variables trained({1000, 250}), same_ones({1000, 250});
      trained.Prepare(update);
      same_ones.Prepare(update);
      trained.Run(kernels, words, planes, update, 0, 40);
      same_ones.Run(portable, words, planes, update, 0, 40);
      trained.CheckEquals(same_ones);
    }
  }
}

#define LAW(name) {#name, name}
constexpr struct {
  const char* name;
  void (*check)(const Kernels&);
} kLaws[] = {
    LAW(PathsAreFoundByTheirNames),
    LAW(PhiloxGivesKnownAnswers),
    LAW(DrawsAreThoseOfPython),
    LAW(StatsAreSumsOf64InterleavedSequences),
    LAW(ANaNShowsInMaxBits),
    LAW(ColumnStatsAreSumsInTheOrderOfTheRows),
    LAW(StatisticsOfPartsAreThoseOfTheirValues),
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
    LAW(SumsAreThoseOfIntegersModuloTwoToThePlanes),
    LAW(AnInputOfAnyPlanesCanBeSummed),
    LAW(TheSumOver65536NodesFits),
    LAW(AnyPartOfASumCanBeWrittenAlone),
    LAW(MeansAreUnitsTimesSums),
    LAW(AnyPartOfTheMeansCanBeWrittenAlone),
    LAW(LargeTargetsGetTheSameMeans),
    LAW(ResidualsAreValuesLessTheirCodes),
    LAW(SumsOfValuesAreRoundedOnce),
    LAW(UpdatesUseTheMeans),
    LAW(LargeVariablesAreUpdatedPartByPart),
    LAW(ThePrefixCodeIsThatOfItsFormat),
    LAW(WhatIsPackedComesBack),
    LAW(TheDocumentedBytesArePacked),
    LAW(BytesOfNoCodeAreRefusedOrGiveIntegersInRange),
    LAW(ThePathGivesThePortableOnesBits),
};

int Run(const char* path) {
  const Kernels* kernels = FindKernels(path);
  if (!kernels) {
    std::printf("no kernels %s here; supported: %s\n", path, SupportedPaths());
    return kSkip;
  }
  for (const auto& l : kLaws) {
    law = l.name;
    trying[0] = 0;
    l.check(*kernels);
  }
  std::printf("%s: %zu laws hold\n", kernels->path, std::size(kLaws));
  return 0;
}

// Checks all paths that this processor has.
int RunAll() {
  for (const char* path : {"portable", "avx2", "avx512"}) {
    const int status = Run(path);
    if (status && status != kSkip) return status;
  }
  return 0;
}

}  // namespace
}  // namespace terngrad

int main(int argc, char** argv) {
  if (argc == 2) return terngrad::Run(argv[1]);
  if (argc == 1) return terngrad::RunAll();
  std::printf("usage: kernels_test [avx512 | avx2 | portable]\n");
  return 2;
}
