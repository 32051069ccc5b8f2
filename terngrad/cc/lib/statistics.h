// Statistics of a variable by part, in pieces that threads can share. Results
// do not depend on who computes which piece.

#ifndef TERNGRAD_CC_LIB_STATISTICS_H_
#define TERNGRAD_CC_LIB_STATISTICS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/pieces.h"

namespace terngrad {

// See Pieces.
class Statistics {
 public:
  // `parts` are those of a whole variable, whose values live as long.
  Statistics(const Kernels& kernels, const float* values, int64_t size,
             const Parts& parts)
      : kernels_(kernels),
        values_(values),
        size_(size),
        parts_(parts),
        pieces_(PiecesOf(size, parts)) {
    if (pieces_.columns) {
      sums_.reset(new float[2 * pieces() * pieces_.columns]);
      max_bits_.reset(new uint32_t[pieces() * pieces_.columns]);
    } else {
      blocks_.reset(new BlockStats[pieces()]);
    }
  }

  int64_t pieces() const { return pieces_.count; }
  int64_t parts() const { return parts_.count; }

  // Returns the values of a piece.
  ValueRange RangeOf(int64_t piece) const {
    return terngrad::RangeOf(pieces_, size_, piece);
  }

  // Measures a piece; to be called once for each of them, from any thread.
  void Measure(int64_t piece) {
    const auto [first, last] = RangeOf(piece);
    if (const int64_t columns = pieces_.columns) {
      float* const sums = &sums_[2 * piece * columns];
      kernels_.column_stats(values_ + first, last - first, columns, sums,
                            sums + columns, &max_bits_[piece * columns]);
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
      if (pieces_.columns) {
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

  void AddRun(int64_t run, int64_t place, Totals* totals) const {
    const int64_t pieces_of_run = pieces_.pieces_of_run;
    const int64_t end = std::min(pieces(), (run + 1) * pieces_of_run);
    for (int64_t i = run * pieces_of_run; i < end; ++i) {
      totals->sums[place] += blocks_[i].sum;
      totals->squares[place] += blocks_[i].sum_of_squares;
      totals->max_bits[place] = std::max(
          totals->max_bits[place], static_cast<int32_t>(blocks_[i].max_bits));
    }
  }

  // Adds the columns of parts [first, first + count).
  void AddColumns(int64_t first, int64_t count, Totals* totals) const {
    const int64_t columns = pieces_.columns;
    for (int64_t piece = 0; piece < pieces(); ++piece) {
      const float* const sums = &sums_[2 * piece * columns];
      const uint32_t* const bits = &max_bits_[piece * columns];
      for (int64_t c = first; c < columns; c += parts_.count) {
        for (int64_t i = 0; i < count; ++i) {
          totals->sums[i] += sums[c + i];
          totals->squares[i] += sums[columns + c + i];
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
  Pieces pieces_;
  std::unique_ptr<float[]> sums_;         // by piece: sums, sums of squares
  std::unique_ptr<uint32_t[]> max_bits_;  // by piece
  std::unique_ptr<BlockStats[]> blocks_;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_STATISTICS_H_
