// Laws of statistics.

#include "terngrad/cc/lib/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace testing {
namespace {

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
    Try("size %d", static_cast<int>(size));
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
      Try("%#x at %d", bits, static_cast<int>(i));
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
        Try("%d columns, %d rows but for %d", static_cast<int>(columns),
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
    Try("%d values, %d parts", static_cast<int>(size),
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
      CHECK(std::fabs(got[0][i] - sums[i]) <= 1e-6 * values_of_part);
      CHECK(std::fabs(got[1][i] - squares[i]) <= 1e-6 * squares[i]);
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

}  // namespace

Laws StatisticsLaws() {
  return {
      LAW(StatsAreSumsOf64InterleavedSequences),
      LAW(ANaNShowsInMaxBits),
      LAW(ColumnStatsAreSumsInTheOrderOfTheRows),
      LAW(StatisticsOfPartsAreThoseOfTheirValues),
  };
}

}  // namespace testing
}  // namespace terngrad
