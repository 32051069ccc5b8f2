// How the threads of a grid share a bucket.

#ifndef TERNGRAD_CC_GPU_BUCKET_H_
#define TERNGRAD_CC_GPU_BUCKET_H_

#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/warp.h"
#include "terngrad/cc/lib/code_rules.h"
#include "terngrad/cc/lib/device.h"

namespace terngrad {
namespace gpu {

// The items of a bucket.
template <class Item>
struct Items {
  const Item* items;
  int64_t count;

  // Returns the item that has an element of the bucket, given one at or before
  // it; the last one for elements after all.
  TERNGRAD_DEVICE int64_t From(int64_t item, int64_t element) const {
    while (element - items[item].offset >= items[item].size &&
           item + 1 < count) {
      ++item;
    }
    return item;
  }

  // Returns the item that has an element.
  TERNGRAD_DEVICE int64_t Find(int64_t element) const {
    int64_t first = 0;
    for (int64_t left = count; left > 1;) {
      const int64_t half = left / 2;
      if (element >= items[first + half].offset) first += half;
      left -= half;
    }
    return first;
  }
};

inline constexpr int kTileValues = kTileRows * kWordBits;

// Calls run(warp, row, item) for each tile of kTileRows rows that the block
// makes: its first row, and the item that has the row's first element.
template <class Item, class Run>
TERNGRAD_DEVICE static inline void ForTiles(const Block& block,
                                            const Items<Item>& items,
                                            int64_t rows, Run run) {
  block.ForWarps([&](const Warp& warp) {
    constexpr int64_t kRows = kTileRows * kWarpTiles;
    const int64_t begin = (block.index() * kWarps + warp.index()) * kRows;
    const int64_t end = begin + kRows < rows ? begin + kRows : rows;
    if (begin >= end) return;
    int64_t item = items.Find(begin * kWordBits);
#pragma unroll 1
    for (int64_t row = begin; row < end; row += kTileRows) {
      item = items.From(item, row * kWordBits);
      run(warp, row, item);
    }
  });
}

// Returns whether a tile that begins with an item's value `begin` has values of
// this item only.
template <class Item>
TERNGRAD_DEVICE static inline bool IsWithin(const Item& item, int64_t begin) {
  return begin + kTileValues <= item.size;
}

// Returns a / b. Numbers of more than 32 bits are rare: the compilers' own
// division of these is a function, for which registers would be spilled.
TERNGRAD_DEVICE static inline uint64_t Quotient(uint64_t a, uint64_t b) {
  if (((a | b) >> 32) == 0) {
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  uint64_t quotient = 0, rest = 0;
#pragma unroll 1
  for (int i = 63; i >= 0; --i) {
    const bool is_large = rest >> 63;  // 2 rest is more than 64 bits hold
    rest = rest << 1 | (a >> i & 1);
    const bool fits = is_large || rest >= b;
    if (fits) rest -= b;
    quotient = quotient << 1 | uint64_t{fits};
  }
  return quotient;
}

// Returns PartOf(parts, i).
TERNGRAD_DEVICE static inline int64_t PartAt(const Parts& parts, int64_t i) {
  if (parts.count == 1) return 0;
  const uint64_t place = parts.first + i;
  const uint64_t run = parts.block == 1 ? place : Quotient(place, parts.block);
  return run - Quotient(run, parts.count) * parts.count;
}

// The parts of values i, i + 32, i + 64 and so on of a tile.
class PartsFrom {
 public:
  TERNGRAD_DEVICE PartsFrom(const Parts& parts, int64_t i)
      : count_(static_cast<uint32_t>(parts.count)) {
    if (count_ == 1) return;
    const uint64_t place = parts.first + i;
    const uint64_t run =
        parts.block == 1 ? place : Quotient(place, parts.block);
    part_ = static_cast<uint32_t>(run - Quotient(run, count_) * count_);
    // A tile is shorter than kFar.
    constexpr int64_t kFar = 1 << 30;
    const int64_t left = (run + 1) * parts.block - place;
    left_ = static_cast<int>(left < kFar ? left : kFar);
    block_ = static_cast<int>(parts.block < kFar ? parts.block : kFar);
    // What 32 values further means:
    const uint32_t runs = static_cast<uint32_t>(kWordBits) / block_;
    step_ = runs < count_ ? runs : runs % count_;
    step_in_block_ = kWordBits - runs * block_;
  }

  TERNGRAD_DEVICE uint32_t part() const { return part_; }
  TERNGRAD_DEVICE bool AreMany() const { return count_ > 1; }

  // Moves on by 32 values; call it only if there are many parts.
  TERNGRAD_DEVICE void Next() {
    left_ -= step_in_block_;
    part_ += step_;
    if (left_ <= 0) {
      left_ += block_;
      ++part_;
    }
    if (part_ >= count_) part_ -= count_;
  }

 private:
  uint32_t count_, part_ = 0, step_ = 0;
  int left_ = 0, block_ = 0, step_in_block_ = 0;
};

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_BUCKET_H_
