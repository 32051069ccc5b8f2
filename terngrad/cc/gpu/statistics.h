// Kernels of statistics, with the bits of terngrad/cc/lib/statistics.h, and the
// one that adds gradients and what a codec kept.

#ifndef TERNGRAD_CC_GPU_STATISTICS_H_
#define TERNGRAD_CC_GPU_STATISTICS_H_

#include "terngrad/cc/gpu/bucket.h"
#include "terngrad/cc/gpu/scalars.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/warp.h"
#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/pieces.h"

namespace terngrad {
namespace gpu {

// Statistics of values that one thread adds in their order.
struct LaneStats {
  float sum = 0.0f, squares = 0.0f;
  uint32_t max_bits = 0;

  TERNGRAD_DEVICE void Add(float x) {
    sum = OneLane::Add(sum, x);
    squares = OneLane::Add(squares, OneLane::Multiply(x, x));
    const uint32_t bits = BitsOf(x) & 0x7FFFFFFF;
    max_bits = bits > max_bits ? bits : max_bits;
  }
};

// Adds values[first], values[first + step] and so on before values[last].
TERNGRAD_DEVICE static inline LaneStats StatsOf(const Measured& variable,
                                                int64_t first, int64_t last,
                                                int64_t step) {
  constexpr int kAtOnce = 16;  // that are read before the first is added
  LaneStats stats;
  int64_t i = first;
  for (; i + (kAtOnce - 1) * step < last; i += kAtOnce * step) {
    float x[kAtOnce];
    Load(variable.values, variable.type, i, step, x);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) stats.Add(x[j]);
  }
#pragma unroll 1
  for (; i < last; i += step) {
    stats.Add(Load(variable.values, variable.type, i));
  }
  return stats;
}

// Scratch memory of a variable whose parts are columns: by piece sums and sums
// of squares, then by piece the largest bits.
struct ColumnScratch {
  float* sums;
  uint32_t* max_bits;

  TERNGRAD_DEVICE explicit ColumnScratch(const Measured& variable)
      : sums(static_cast<float*>(variable.scratch)),
        max_bits(reinterpret_cast<uint32_t*>(
            sums + 2 * variable.pieces.count * variable.pieces.columns)) {}
};

// Measures up to kPieceThreads columns of a piece, one in each thread.
TERNGRAD_DEVICE static inline void MeasureColumns(const Block& block,
                                                  const Measured& variable,
                                                  int64_t own) {
  const int64_t columns = variable.pieces.columns;
  const int64_t blocks = BlocksOf(columns, kPieceThreads);
  const int64_t piece = own / blocks;
  const ValueRange range = RangeOf(variable.pieces, variable.size, piece);
  const ColumnScratch scratch(variable);
  block.ForThreads([&](int thread) {
    const int64_t column = own % blocks * kPieceThreads + thread;
    if (column >= columns) return;
    const LaneStats stats =
        StatsOf(variable, range.first + column, range.last, columns);
    float* const sums = scratch.sums + 2 * piece * columns + column;
    sums[0] = stats.sum;
    sums[columns] = stats.squares;
    scratch.max_bits[piece * columns + column] = stats.max_bits;
  });
}

// Measures a piece of a run. The threads' sums are added in their order.
TERNGRAD_DEVICE static inline void MeasurePiece(const Block& block,
                                                const Measured& variable,
                                                int64_t piece) {
  TERNGRAD_SHARED double sums[2][kPieceThreads];
  TERNGRAD_SHARED uint32_t max_bits[kPieceThreads];
  const ValueRange range = RangeOf(variable.pieces, variable.size, piece);
  block.ForThreads([&](int thread) {
    const LaneStats stats =
        StatsOf(variable, range.first + thread, range.last, kPieceThreads);
    sums[0][thread] = stats.sum;
    sums[1][thread] = stats.squares;
    max_bits[thread] = stats.max_bits;
  });
  block.Wait();
  block.ForThreads([&](int thread) {
    if (thread % kWarpLanes) return;
    const int which = thread / kWarpLanes;  // each by a warp of its own
    double total = 0.0;
    uint32_t largest = 0;
#pragma unroll 16
    for (int i = 0; i < kPieceThreads; ++i) {
      total += sums[which][i];
      largest = max_bits[i] > largest ? max_bits[i] : largest;
    }
    auto* const stats = static_cast<BlockStats*>(variable.scratch) + piece;
    (which ? stats->sum_of_squares : stats->sum) = total;
    if (which) stats->max_bits = largest;
  });
}

// Returns the item that has a block, given the number of blocks before each.
template <class First>
TERNGRAD_DEVICE static inline const Measured& ItemOf(const Measured* variables,
                                                     int64_t count,
                                                     int64_t block,
                                                     First first) {
  int64_t item = 0;
  for (int64_t left = count; left > 1;) {
    const int64_t half = left / 2;
    if (block >= first(variables[item + half])) item += half;
    left -= half;
  }
  return variables[item];
}

// Measures all pieces of all variables.
TERNGRAD_DEVICE static inline void Measure(const Block& block,
                                           const Measured* variables,
                                           int64_t count) {
  const Measured& variable =
      ItemOf(variables, count, block.index(),
             [](const Measured& item) { return item.first_piece; });
  const int64_t own = block.index() - variable.first_piece;
  if (variable.pieces.columns) {
    MeasureColumns(block, variable, own);
  } else {
    MeasurePiece(block, variable, own);
  }
}

// The statistics of a part.
struct Totals {
  double sum = 0.0, squares = 0.0;
  uint32_t max_bits = 0;

  TERNGRAD_DEVICE void Add(double more, double more_squares, uint32_t bits) {
    sum += more;
    squares += more_squares;
    max_bits = bits > max_bits ? bits : max_bits;
  }
};

// Arrays with a number of each part of all variables.
struct StatsArrays {
  float* sums;
  float* squares;
  float* max_abs;
};

// Returns a total as a float; 0, of its sign, where that is denormal, which the
// conversions of GPUs do not see to.
TERNGRAD_DEVICE static inline float TotalOf(double total) {
  constexpr uint32_t kExponent = 0x7F800000, kSign = 0x80000000;
  const uint32_t bits = BitsOf(static_cast<float>(total));
  return FloatOf(bits & kExponent ? bits : bits & kSign);
}

// Returns the magnitude of these bits. Denormal ones count as 0.
TERNGRAD_DEVICE static inline float MagnitudeOfBits(uint32_t bits) {
  constexpr uint32_t kSmallestNormalBits = 0x00800000;
  return bits < kSmallestNormalBits ? 0.0f : FloatOf(bits);
}

// Adds the columns of a part, piece by piece.
TERNGRAD_DEVICE static inline Totals TotalOfColumns(const Measured& variable,
                                                    int64_t part) {
  constexpr int kAtOnce = 8;  // that are read before the first is added
  const int64_t columns = variable.pieces.columns;
  const int64_t step = variable.parts.count, in_piece = columns / step;
  const int64_t count = variable.pieces.count * in_piece;
  const ColumnScratch scratch(variable);
  const uint32_t* bits = scratch.max_bits + part;
  const float* sums = scratch.sums + part;
  int64_t left = in_piece;  // columns of this piece
  const auto next = [&] {
    bits += step;
    sums += step;
    if (--left > 0) return;
    left = in_piece;
    sums += columns;  // the sums of squares
  };
  Totals totals;
  int64_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    float some[kAtOnce], squares[kAtOnce];
    uint32_t some_bits[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j, next()) {
      some[j] = sums[0];
      squares[j] = sums[columns];
      some_bits[j] = bits[0];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      totals.Add(some[j], squares[j], some_bits[j]);
    }
  }
#pragma unroll 1
  for (; i < count; ++i, next()) totals.Add(sums[0], sums[columns], bits[0]);
  return totals;
}

// Adds the pieces of a part.
TERNGRAD_DEVICE static inline Totals TotalOfRun(const Measured& variable,
                                                int64_t part) {
  const auto* const blocks = static_cast<const BlockStats*>(variable.scratch);
  const int64_t each = variable.pieces.pieces_of_run;
  const int64_t first = part * each, end = variable.pieces.count;
  const int64_t last = first + each < end ? first + each : end;
  Totals totals;
#pragma unroll 4
  for (int64_t i = first; i < last; ++i) {
    totals.Add(blocks[i].sum, blocks[i].sum_of_squares, blocks[i].max_bits);
  }
  return totals;
}

// Adds the pieces of some parts, one part in each thread.
TERNGRAD_DEVICE static inline void TotalParts(const Block& block,
                                              const Measured& variable,
                                              int64_t first_part,
                                              const StatsArrays& out) {
  block.ForThreads([&](int thread) {
    const int64_t part = first_part + thread;
    if (part >= variable.parts.count) return;
    const Totals totals = variable.pieces.columns
                              ? TotalOfColumns(variable, part)
                              : TotalOfRun(variable, part);
    const int64_t place = variable.first_part + part;
    out.sums[place] = TotalOf(totals.sum);
    out.squares[place] = TotalOf(totals.squares);
    out.max_abs[place] = MagnitudeOfBits(totals.max_bits);
  });
}

// Adds the many pieces of one part, all threads together: additions in order
// take as long as their latency, so two warps do nothing else.
TERNGRAD_DEVICE static inline void TotalLongRun(const Block& block,
                                                const Measured& variable,
                                                int64_t part,
                                                const StatsArrays& out) {
  constexpr int kStage = 256;
  constexpr int kAdding = 2 * kWarpLanes;  // threads of the two warps
  constexpr int kLoading = kTotalThreads - kAdding;
  constexpr int kAtOnce = 16;  // that are read while as many are added
  TERNGRAD_SHARED double staged[2][2][kStage + kAtOnce];
  TERNGRAD_SHARED double totals[2];
  TERNGRAD_SHARED uint32_t max_bits[kLoading];
  const int64_t each = variable.pieces.pieces_of_run;
  const int64_t first = part * each;
  const int64_t end = variable.pieces.count;
  const int64_t last = first + each < end ? first + each : end;
  const auto* const blocks = static_cast<const BlockStats*>(variable.scratch);
  // After the last piece come zeros, which change no sum: none is -0.
  const auto load = [&](int thread, int64_t begin, int stage) {
    constexpr int kEach = kStage / kLoading;
    const int own = thread - kAdding;
    BlockStats stats[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t piece = begin + own + i * kLoading;
      stats[i] = piece < last ? blocks[piece] : BlockStats{0.0, 0.0, 0};
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      staged[stage][0][own + i * kLoading] = stats[i].sum;
      staged[stage][1][own + i * kLoading] = stats[i].sum_of_squares;
      const uint32_t bits = stats[i].max_bits;
      max_bits[own] = bits > max_bits[own] ? bits : max_bits[own];
    }
  };
  const auto add = [&](int which, int64_t begin, int stage) {
    const double* const more = staged[stage][which];
    double total = totals[which];
    double held[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) held[j] = more[j];
    const int count = last - begin < kStage ? last - begin : kStage;
#pragma unroll 2
    for (int i = 0; i < count; i += kAtOnce) {
      double next[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) next[j] = more[i + kAtOnce + j];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) total += held[j];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) held[j] = next[j];
    }
    totals[which] = total;
  };
  block.ForThreads([&](int thread) {
    if (thread < 2) totals[thread] = 0.0;
    if (thread < kAdding) return;
    max_bits[thread - kAdding] = 0;
    load(thread, first, 0);
  });
  block.Wait();
  for (int64_t begin = first, stage = 0; begin < last;
       begin += kStage, stage ^= 1) {
    block.ForThreads([&](int thread) {
      if (thread >= kAdding) {
        load(thread, begin + kStage, stage ^ 1);
      } else if (thread % kWarpLanes == 0) {
        add(thread / kWarpLanes, begin, stage);
      }
    });
    block.Wait();
  }
  block.ForThreads([&](int thread) {
    if (thread) return;
    uint32_t largest = 0;
    for (const uint32_t bits : max_bits) {
      largest = bits > largest ? bits : largest;
    }
    const int64_t place = variable.first_part + part;
    out.sums[place] = TotalOf(totals[0]);
    out.squares[place] = TotalOf(totals[1]);
    out.max_abs[place] = MagnitudeOfBits(largest);
  });
}

// Writes the statistics of all parts of all variables when their pieces are
// measured.
TERNGRAD_DEVICE static inline void Total(const Block& block,
                                         const Measured* variables,
                                         int64_t count, float* sums,
                                         float* squares, float* max_abs) {
  const Measured& variable =
      ItemOf(variables, count, block.index(),
             [](const Measured& item) { return item.first_total; });
  const int64_t own = block.index() - variable.first_total;
  const StatsArrays out = {sums, squares, max_abs};
  if (variable.pieces.pieces_of_run > kShortRun) {
    TotalLongRun(block, variable, own, out);
  } else {
    TotalParts(block, variable, own * kTotalThreads, out);
  }
}

// Writes gradients + a codec's memory.
TERNGRAD_DEVICE static inline void Correct(const Block& block,
                                           const Corrected* variables,
                                           int64_t count, int64_t rows) {
  const Items<Corrected> items = {variables, count};
  ForTiles(block, items, rows,
           [&](const Warp& warp, int64_t row, int64_t item) {
             warp.ForLanes([&](int lane) {
               int64_t own = item;
               for (int r = 0; r < kTileRows; ++r) {
                 const int64_t element = (row + r) * kWordBits + lane;
                 own = items.From(own, element);
                 const Corrected& variable = variables[own];
                 const int64_t i = element - variable.offset;
                 if (i >= variable.size) return;
                 const float x = Load(variable.values, variable.type, i);
                 variable.sums[i] = OneLane::Add(x, variable.memory[i]);
               }
             });
           });
}

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_STATISTICS_H_
