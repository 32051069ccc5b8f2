// The input of the kernels for GPUs: tables of a bucket's variables, in device
// memory, and arguments. Host code fills them; all pointers are the device's.

#ifndef TERNGRAD_CC_GPU_TABLES_H_
#define TERNGRAD_CC_GPU_TABLES_H_

#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/pieces.h"
#include "terngrad/cc/lib/types.h"

namespace terngrad {
namespace gpu {

// The type of gradients. The last two are converted to float32, exactly.
enum class ValueType : int32_t { kFloat32, kFloat16, kBfloat16 };

// A table's items follow the bucket's order. `offset` is the place of an item's
// first value in the bucket: the sum of the sizes before it.
// Variables have fewer than 2^31 parts; numbers of parts need no padding here.

// A variable's gradient and how to encode it.
struct Source {
  const void* values;
  int64_t size;
  int64_t offset;
  int64_t first;  // index of the first value in the variable, for its draws
  Parts parts;
  const float* bounds;  // of the parts, to clip to; null = no clipping
  const float* scales;  // of the parts: what the largest code is worth
  uint32_t variable;    // index of the variable, < 2^16
  ValueType type;
};

// Memory for a variable's mean gradient.
struct Target {
  float* values;
  int64_t size;
  int64_t offset;
  Parts parts;
  const float* scales;  // of the parts; see UnitRule
};

// A variable's values, and memory for their residuals, which the codes omit.
struct Kept {
  const float* values;
  float* residuals;  // may be the values' memory
  int64_t size;
  int64_t offset;
  Parts parts;
  const float* scales;
};

// A variable that is trained.
struct Trained {
  float* weights;
  float* slots[2];  // the first SlotCount(rule) count
  float* averages;  // null if there are none
  int64_t size;
  int64_t offset;
  Parts parts;
  const float* scales;
};

// A gradient, what a codec kept of earlier ones, and memory for their sum.
struct Corrected {
  const void* values;
  const float* memory;
  float* sums;  // may be the memory of either, of float32 values only
  int64_t size;
  int64_t offset;
  ValueType type;
};

// A whole variable whose statistics are measured.
struct Measured {
  const void* values;
  int64_t size;
  Parts parts;
  Pieces pieces;        // PiecesOf(size, parts)
  int64_t first_piece;  // the sums of the items before it: of PieceBlocks
  int64_t first_total;  // of TotalBlocks
  int64_t first_part;   // of parts.count
  void* scratch;        // ScratchBytes bytes, at a multiple of 8
  ValueType type;
};

// What a sum of 1 is worth in a part of a variable: u / divisor, where
// u = scale * share counts as 0 below kSmallestScale. `share` is
// 1.0f / max_code, or 1 where the table has units instead of scales; `divisor`
// is the number of nodes, or 1 for codes.
struct UnitRule {
  float share;
  float divisor;
};

// ---- Sizes of launches -----------------------------------------------------

inline constexpr int kTileRows =
    8;  // words of each plane that a warp makes at once
inline constexpr int kWarpTiles = 2;  // tiles that a warp makes, in turn
inline constexpr int kWarps = 8;      // of a block, of kernels of a bucket
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kBlockRows = kWarps * kWarpTiles * kTileRows;

// Threads of a block that measures a piece of a run, or as many columns of a
// piece.
inline constexpr int kPieceThreads = 64;

// Threads of a block that adds pieces: those of as many parts, or of one part
// that has more than kShortRun pieces.
inline constexpr int kTotalThreads = 128;
inline constexpr int kShortRun = 64;

TERNGRAD_DEVICE static inline int64_t BlocksOf(int64_t count, int64_t each) {
  return (count + each - 1) / each;
}

// Returns the number of blocks that measure a variable.
TERNGRAD_DEVICE static inline int64_t PieceBlocks(const Pieces& pieces) {
  return pieces.count *
         (pieces.columns ? BlocksOf(pieces.columns, kPieceThreads) : 1);
}

// Returns the number of blocks that add the pieces of a variable's parts.
TERNGRAD_DEVICE static inline int64_t TotalBlocks(const Pieces& pieces,
                                                  const Parts& parts) {
  return pieces.pieces_of_run > kShortRun
             ? parts.count
             : BlocksOf(parts.count, kTotalThreads);
}

// Returns the bytes that the measuring blocks write for the adding blocks.
TERNGRAD_DEVICE static inline int64_t ScratchBytes(const Pieces& pieces) {
  return pieces.columns
             ? 12 * pieces.count * pieces.columns
             : static_cast<int64_t>(sizeof(BlockStats)) * pieces.count;
}

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_TABLES_H_
