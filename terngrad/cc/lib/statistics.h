// Statistics of a variable by part, in pieces that threads can share. Results
// do not depend on who computes which piece.

#ifndef TERNGRAD_CC_LIB_STATISTICS_H_
#define TERNGRAD_CC_LIB_STATISTICS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>

#include "terngrad/cc/lib/kernels.h"

namespace terngrad {

// Parts of neighbours are measured in pieces of kStatsBlock values. Periodic
// parts are columns of a matrix, of which kStatsRows rows are a piece. Few or
// oddly many parts form a wider matrix, whose rows are whole vectors.
class Statistics {
 public:
  // `parts` are those of a whole variable, whose values live as long.
  Statistics(const Kernels& kernels, const float* values, int64_t size,
             const Parts& parts)
      : kernels_(kernels), values_(values), size_(size), parts_(parts) {
    if (IsPeriodic(parts)) {
      constexpr int64_t kWhole = 16, kWidest = 4096;
      const int64_t whole = std::lcm(parts.count, kWhole);
      columns_ = whole <= kWidest ? whole : parts.count;
      pieces_ = Quotient(size, kStatsRows * columns_);
      sums_.reset(new float[2 * pieces_ * columns_]);
      max_bits_.reset(new uint32_t[pieces_ * columns_]);
    } else {
      run_ = std::max<int64_t>(parts.count == 1 ? size : parts.block, 1);
      pieces_of_run_ = Quotient(run_, kStatsBlock);
      pieces_ =
          size / run_ * pieces_of_run_ + Quotient(size % run_, kStatsBlock);
      blocks_.reset(new BlockStats[pieces_]);
    }
  }

  int64_t pieces() const { return pieces_; }
  int64_t parts() const { return parts_.count; }

  // Values [first, last).
  struct Range {
    int64_t first, last;
  };

  // Returns the values of a piece.
  Range RangeOf(int64_t piece) const {
    if (IsPeriodic(parts_)) {
      const int64_t first = piece * kStatsRows * columns_;
      return {first, std::min(first + kStatsRows * columns_, size_)};
    }
    const int64_t begin = piece / pieces_of_run_ * run_;
    const int64_t first = begin + piece % pieces_of_run_ * kStatsBlock;
    const int64_t end = std::min(begin + run_, size_);
    return {first, std::min<int64_t>(first + kStatsBlock, end)};
  }

  // Measures a piece; to be called once for each of them, from any thread.
  void Measure(int64_t piece) {
    const auto [first, last] = RangeOf(piece);
    if (IsPeriodic(parts_)) {
      float* const sums = &sums_[2 * piece * columns_];
      kernels_.column_stats(values_ + first, last - first, columns_, sums,
                            sums + columns_, &max_bits_[piece * columns_]);
    } else {
      blocks_[piece] = kernels_.stats(values_ + first, last - first);
    }
  }

  // Writes the statistics of parts [begin, end) when all pieces are measured,
  // each to the place of its part.
  void Write(int64_t begin, int64_t end, float* sums, float* squares,
             float* max_abs) const {
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t count = std::min(kTile, end - first);
      Totals totals = {};
      if (IsPeriodic(parts_)) {
        AddColumns(first, count, &totals);
      } else {
        for (int64_t i = 0; i < count; ++i) AddRun(first + i, i, &totals);
      }
      for (int64_t i = 0; i < count; ++i) {
        sums[first + i] = static_cast<float>(totals.sums[i]);
        squares[first + i] = static_cast<float>(totals.squares[i]);
        max_abs[first + i] = Magnitude(totals.max_bits[i]);
      }
    }
  }

 private:
  static constexpr int64_t kTile = 64;

  // Of some parts: compilers make vectors of these loops.
  struct Totals {
    double sums[kTile];
    double squares[kTile];
    int32_t max_bits[kTile];  // without signs
  };

  static int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

  void AddRun(int64_t run, int64_t place, Totals* totals) const {
    const int64_t end = std::min(pieces_, (run + 1) * pieces_of_run_);
    for (int64_t i = run * pieces_of_run_; i < end; ++i) {
      totals->sums[place] += blocks_[i].sum;
      totals->squares[place] += blocks_[i].sum_of_squares;
      totals->max_bits[place] = std::max(
          totals->max_bits[place], static_cast<int32_t>(blocks_[i].max_bits));
    }
  }

  // Adds the columns of parts [first, first + count).
  void AddColumns(int64_t first, int64_t count, Totals* totals) const {
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      const float* const sums = &sums_[2 * piece * columns_];
      const uint32_t* const bits = &max_bits_[piece * columns_];
      for (int64_t c = first; c < columns_; c += parts_.count) {
        for (int64_t i = 0; i < count; ++i) {
          totals->sums[i] += sums[c + i];
          totals->squares[i] += sums[columns_ + c + i];
          const int32_t magnitude = static_cast<int32_t>(bits[c + i]);
          totals->max_bits[i] = std::max(totals->max_bits[i], magnitude);
        }
      }
    }
  }

  // Not by a comparison of floats, which a denormal value may escape.
  static float Magnitude(int32_t bits) {
    constexpr int32_t kSmallestNormalBits = 0x00800000;
    if (bits < kSmallestNormalBits) return 0.0f;
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
    return magnitude;
  }

  const Kernels& kernels_;
  const float* values_;
  int64_t size_;
  Parts parts_;
  int64_t pieces_;
  int64_t columns_ = 0;                   // of periodic parts
  std::unique_ptr<float[]> sums_;         // by piece: sums, sums of squares
  std::unique_ptr<uint32_t[]> max_bits_;  // by piece
  int64_t run_ = 0, pieces_of_run_ = 0;   // of other parts
  std::unique_ptr<BlockStats[]> blocks_;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_STATISTICS_H_
