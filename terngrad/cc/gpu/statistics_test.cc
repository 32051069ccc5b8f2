// Laws of the statistics of the kernels for GPUs.

#include "terngrad/cc/lib/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/testing/buckets.h"
#include "terngrad/cc/gpu/testing/launch.h"
#include "terngrad/cc/gpu/testing/laws.h"
#include "terngrad/cc/lib/flushing.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {
namespace {

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
    CHECK_SAME(got[0], want[0]);  // sums
    CHECK_SAME(got[1], want[1]);  // sums of squares
    CHECK_SAME(got[2], want[2]);  // largest magnitudes
  }
}

}  // namespace

Laws StatisticsLaws() {
  return {
      {LAW(StatisticsAreThoseOfTheCpu), 2},
  };
}

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad
