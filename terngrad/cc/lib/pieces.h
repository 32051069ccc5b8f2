// The pieces in which statistics are measured.

#ifndef TERNGRAD_CC_LIB_PIECES_H_
#define TERNGRAD_CC_LIB_PIECES_H_

#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/types.h"

namespace terngrad {

// Runs of neighbours of one part are measured in pieces of kStatsBlock values.
// Periodic parts are columns of a matrix, of which kStatsRows rows are a piece.
struct Pieces {
  int64_t count;
  int64_t columns;        // of the matrix; 0 for runs
  int64_t run;            // values of a run
  int64_t pieces_of_run;  // the last run may be shorter
};

// Returns the pieces of a whole variable. Few or oddly many parts form a wider
// matrix, whose rows are whole vectors.
TERNGRAD_DEVICE static inline Pieces PiecesOf(int64_t size,
                                              const Parts& parts) {
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (IsPeriodic(parts)) {
    constexpr int64_t kWhole = 16, kWidest = 4096;
    int64_t whole = parts.count;  // becomes the least multiple of both
    while (whole % kWhole) whole *= 2;
    const int64_t columns = whole <= kWidest ? whole : parts.count;
    return {quotient(size, kStatsRows * columns), columns, 0, 0};
  }
  const int64_t longest = parts.count == 1 ? size : parts.block;
  const int64_t run = longest > 1 ? longest : 1;
  const int64_t pieces_of_run = quotient(run, kStatsBlock);
  const int64_t count =
      size / run * pieces_of_run + quotient(size % run, kStatsBlock);
  return {count, 0, run, pieces_of_run};
}

// Values [first, last).
struct ValueRange {
  int64_t first, last;
};

// Returns the values of a piece of a variable of `size` values.
TERNGRAD_DEVICE static inline ValueRange RangeOf(const Pieces& pieces,
                                                 int64_t size, int64_t piece) {
  int64_t first, last;
  if (pieces.columns) {
    first = piece * kStatsRows * pieces.columns;
    last = first + kStatsRows * pieces.columns;
  } else {
    const int64_t begin = piece / pieces.pieces_of_run * pieces.run;
    first = begin + piece % pieces.pieces_of_run * kStatsBlock;
    last = first + kStatsBlock;
    if (last > begin + pieces.run) last = begin + pieces.run;
  }
  return {first, last < size ? last : size};
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_PIECES_H_
