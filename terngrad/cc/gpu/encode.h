// Kernels that turn values into codes.

#ifndef TERNGRAD_CC_GPU_ENCODE_H_
#define TERNGRAD_CC_GPU_ENCODE_H_

#include "terngrad/cc/gpu/bucket.h"
#include "terngrad/cc/gpu/scalars.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/warp.h"
#include "terngrad/cc/lib/code_rules.h"
#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/types.h"

namespace terngrad {
namespace gpu {

// Returns the bound of a part; infinity also where it is NaN, as no magnitude
// is above either.
TERNGRAD_DEVICE static inline float BoundOf(const Source& source,
                                            int64_t part) {
  const float infinity = FloatOf(0x7F800000);
  if (!source.bounds) return infinity;
  const float bound = source.bounds[part];
  return bound == bound ? bound : infinity;
}

// Returns the smaller one of a magnitude, which may be NaN, and a bound.
TERNGRAD_DEVICE static inline float Clipped(float magnitude, float bound) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800  // one instruction
  float smaller;
  asm("min.ftz.NaN.f32 %0, %1, %2;"
      : "=f"(smaller)
      : "f"(magnitude), "f"(bound));
  return smaller;
#else
  return magnitude > bound ? bound : magnitude;
#endif
}

// The words of a tile: lane i keeps those of row i.
template <int PLANES>
class TileWords {
 public:
  TERNGRAD_DEVICE explicit TileWords(const Warp& warp) : warp_(warp) {
    warp_.ForLanes([&](int lane) {
      for (auto& kept : kept_) kept[lane] = 0;
    });
  }

  // Makes the words of a row. is_set(lane, j) says whether plane j has the bit
  // of a lane's element.
  template <class IsSet>
  TERNGRAD_DEVICE void Put(int row, IsSet is_set) {
#pragma unroll
    for (int j = 0; j < PLANES; ++j) {
      const uint32_t word =
          warp_.Ballot([&](int lane) { return is_set(lane, j); });
      warp_.ForLanes([&](int lane) {
        if (lane == row) kept_[j][lane] = word;
      });
    }
  }

  // Writes the words of the first `rows` rows, of which lane i had element
  // i - rotation, modulo 32.
  TERNGRAD_DEVICE void Store(int rotation, int64_t rows,
                             uint32_t* words) const {
    warp_.ForLanes([&](int lane) {
      if (lane >= kTileRows || lane >= rows) return;
#pragma unroll
      for (int j = 0; j < PLANES; ++j) {
        const uint32_t word = kept_[j][lane];
        words[lane * PLANES + j] =
            word >> rotation | word << (kWordBits - rotation) % kWordBits;
      }
    });
  }

 private:
  const Warp& warp_;
  PerLane<uint32_t> kept_[PLANES];
};

// The complements of the upper halves of a tile's draws: two rows in each word.
// Row r of lane i is for the element with e % 32 = i of elements e from
// `element` + 32 r on.
class TileDraws {
 public:
  TERNGRAD_DEVICE TileDraws(const Warp& warp, const DrawKey& key,
                            uint64_t element) {
    const uint64_t group = element / kDrawGroup;
    // Lanes i and i + 16 need both halves of the same blocks.
    PerLane<uint32_t> sent[2];
    warp.ForLanes([&](int lane) {
      const bool is_upper = lane >= kDrawBlocks;
      uint32_t lower[2], upper[2];
      Halves(key, group * kDrawBlocks + lane, lower, upper);
      for (int i = 0; i < 2; ++i) {
        pairs_[i][lane] = is_upper ? upper[i] : lower[i];
        sent[i][lane] = is_upper ? lower[i] : upper[i];
      }
    });
    warp.SwapHalves(&sent[0]);
    warp.SwapHalves(&sent[1]);
    warp.ForLanes([&](int lane) {
      const bool is_upper = lane >= kDrawBlocks;
      for (int i = 0; i < 2; ++i) {
        const uint32_t own = pairs_[i][lane], received = sent[i][lane];
        pairs_[i][lane] = is_upper ? received : own;
        pairs_[i + 2][lane] = is_upper ? own : received;
      }
    });
    const uint32_t in_group = element % kDrawGroup;
    if (in_group == 0) return;
    warp.ForLanes([&](int lane) { Skip(key, group + 2, in_group, lane); });
  }

  TERNGRAD_DEVICE uint32_t operator()(int row, int lane) const {
    const uint32_t pair = pairs_[row / 2][lane];
    return row % 2 ? pair >> 16 : pair & 0xFFFF;
  }

 private:
  static constexpr int kPairs = kTileRows / 2;
  static_assert(kTileRows * kWordBits == 2 * kDrawGroup, "see the constructor");

  // Returns the lower and the upper halves of a block's words, complemented.
  TERNGRAD_DEVICE static void Halves(const DrawKey& key, uint64_t block,
                                     uint32_t (&lower)[2],
                                     uint32_t (&upper)[2]) {
    const PhiloxBlock draws = Philox(key, block);
    for (int i = 0; i < 2; ++i) {
      const uint32_t a = ~draws.words[2 * i], b = ~draws.words[2 * i + 1];
      lower[i] = (a & 0xFFFF) | b << 16;
      upper[i] = a >> 16 | (b & 0xFFFF0000);
    }
  }

  // Appends the draws of group `next` and leaves out those of the elements
  // before element `in_group` of the first group.
  TERNGRAD_DEVICE void Skip(const DrawKey& key, uint64_t next,
                            uint32_t in_group, int lane) {
    uint32_t lower[2], upper[2];
    Halves(key, next * kDrawBlocks + lane % kDrawBlocks, lower, upper);
    const bool is_upper = lane >= kDrawBlocks;
    uint32_t pairs[kPairs + 2];
    for (int i = 0; i < kPairs; ++i) pairs[i] = pairs_[i][lane];
    for (int i = 0; i < 2; ++i) {
      pairs[kPairs + i] = is_upper ? upper[i] : lower[i];
    }
    const uint32_t rows = (in_group + kWordBits - 1 - lane) / kWordBits;
    // At most 4.
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (rows & 4) pairs[i] = pairs[i + 2];
    }
#pragma unroll
    for (int i = 0; i < kPairs + 1; ++i) {
      if (rows & 2) pairs[i] = pairs[i + 1];
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t odd = pairs[i] >> 16 | pairs[i + 1] << 16;
      pairs_[i][lane] = (rows & 1) ? odd : pairs[i];
    }
  }

  PerLane<uint32_t> pairs_[kPairs];
};

// Encodes by draws. S = t / 2^8, rounded down, + 2^16 - 1 - d, t being what a
// value is worth (see SourceEncoder) and d the upper 16 bits of its draw, has
// the code in its upper half. The lower half is 2^16 - 1 where the lower bits
// of the draw decide.
template <int MAX_CODE>
class RandomEncoder {
 public:
  static constexpr int kPlanes = PlaneCount(MAX_CODE);

  TERNGRAD_DEVICE explicit RandomEncoder(const NodeKey& key) : key_(key) {}

  // Returns the code of the i-th value.
  TERNGRAD_DEVICE int CodeOf(const Source& source, int64_t i) const {
    const int64_t part = PartAt(source.parts, i);
    return RandomCodeOf<MAX_CODE>(key_, source.variable, source.first + i,
                                  Load(source.values, source.type, i),
                                  BoundOf(source, part),
                                  RateOf(source.scales[part], MAX_CODE));
  }

  // Returns the words' rotation in EncodeTile.
  TERNGRAD_DEVICE static int RotationOf(const Source& source, int64_t begin) {
    return static_cast<uint64_t>(source.first + begin) % kWordBits;
  }

  // Encodes a tile of a source's values, from `begin` on.
  TERNGRAD_DEVICE void EncodeTile(const Warp& warp, const Source& source,
                                  int64_t begin,
                                  TileWords<kPlanes>* words) const {
    const uint64_t element = source.first + begin;
    const int rotation = RotationOf(source, begin);
    const TileDraws draws(warp, DrawKeyOf(key_, source.variable), element);
    PerLane<uint32_t> sums[kTileRows];
    warp.ForLanes([&](int lane) {
      const int64_t i = begin + (lane - rotation + kWordBits) % kWordBits;
      uint32_t lane_sums[kTileRows];
      if (Add(source, i, draws, lane, lane_sums)) {
        Settle(source, i, lane_sums);
      }
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        sums[row][lane] = lane_sums[row];
      }
    });
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      words->Put(row, [&](int lane, int plane) {
        return HasBit(sums[row][lane], plane);
      });
    }
  }

 private:
  static constexpr uint32_t kSign = uint32_t{1} << 31;
  static constexpr uint32_t kOpen = 0xFFFF;  // lower half of S, see above

  // Computes S of values i, i + 32 and so on, and their signs. Returns whether
  // the lower bits decide any of them.
  TERNGRAD_DEVICE bool Add(const Source& source, int64_t i,
                           const TileDraws& draws, int lane,
                           uint32_t (&sums)[kTileRows]) const {
    float x[kTileRows];
    Load(source.values, source.type, i, kWordBits, x);
    uint32_t thresholds[kTileRows];
    const auto set_threshold = [&](int row, float bound, float rate) {
      const float clipped = Clipped(MagnitudeOf(x[row]), bound);
      const uint32_t t = RoundedDown(OneLane::Multiply(clipped, rate));
      constexpr uint32_t kLargest = uint32_t{MAX_CODE} << 16;
      thresholds[row] = t < kLargest ? t : kLargest;
    };
    if (source.parts.count == 1) {
      const float bound = BoundOf(source, 0);
      const float rate = RateOf(source.scales[0], MAX_CODE);
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) set_threshold(row, bound, rate);
    } else {
      PartsFrom parts(source.parts, i);
#pragma unroll
      for (int row = 0; row < kTileRows; ++row, parts.Next()) {
        const uint32_t part = parts.part();
        set_threshold(row, BoundOf(source, part),
                      RateOf(source.scales[part], MAX_CODE));
      }
    }
    // Antithetic draws are complemented again where (node is odd) xor (x < 0).
    const uint32_t flipped = key_.antithetic ? kOpen : 0;
    const uint32_t odd = key_.node & 1 ? flipped : 0;
    uint32_t largest = 0;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      const uint32_t bits = BitsOf(x[row]);
      const uint32_t flips = (SignMask(bits) & flipped) ^ odd;
      const uint32_t sum = thresholds[row] + (draws(row, lane) ^ flips);
      largest = (sum & kOpen) > largest ? sum & kOpen : largest;
      sums[row] = sum | (bits & kSign);
    }
    return largest == kOpen;
  }

  // Adds 1 to the codes that all 24 bits of the draws round up.
  TERNGRAD_DEVICE void Settle(const Source& source, int64_t i,
                              uint32_t (&sums)[kTileRows]) const {
    uint32_t open = 0, rounded_up = 0;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      open |= uint32_t{(sums[row] & kOpen) == kOpen} << row;
    }
#pragma unroll 1
    for (int row = 0; row < kTileRows; ++row) {
      if (!(open >> row & 1)) continue;
      const int64_t place = i + row * kWordBits;
      const int64_t part = PartAt(source.parts, place);
      const float value = Load(source.values, source.type, place);
      const float threshold = ThresholdOf<MAX_CODE>(
          value, BoundOf(source, part), RateOf(source.scales[part], MAX_CODE));
      const uint32_t draw =
          Draw(DrawKeyOf(key_, source.variable), source.first + place);
      const bool is_up = IsRoundedUp(threshold, DrawFor(key_, draw, value));
      rounded_up |= uint32_t{is_up} << row;
    }
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      sums[row] += (rounded_up >> row & 1) << 16;
    }
  }

  // Returns all bits set if the sign bit is, else none.
  TERNGRAD_DEVICE static uint32_t SignMask(uint32_t bits) {
    return static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
  }

  // Returns a bit of the code in a sum; the sign of a code of 0 may be any.
  TERNGRAD_DEVICE static bool HasBit(uint32_t sum, int plane) {
    if constexpr (MAX_CODE == 1) {
      return (sum & 1 << 16) != 0 && (plane == 0 || (sum & kSign) != 0);
    } else {
      const uint32_t magnitude = (sum & ~kSign) >> 16, mask = SignMask(sum);
      return (((magnitude ^ mask) - mask) >> plane & 1) != 0;
    }
  }

  const NodeKey& key_;
};

// Rounds to the nearest level: see NearestEncoder.
template <int MAX_CODE>
class NearestLevelEncoder {
 public:
  static constexpr int kPlanes = PlaneCount(MAX_CODE);

  TERNGRAD_DEVICE explicit NearestLevelEncoder(const NodeKey&) {}

  TERNGRAD_DEVICE static int RotationOf(const Source&, int64_t) { return 0; }

  TERNGRAD_DEVICE int CodeOf(const Source& source, int64_t i) const {
    const int64_t part = PartAt(source.parts, i);
    return NearestCodeOf<MAX_CODE>(Load(source.values, source.type, i),
                                   RateOf(source.scales[part], MAX_CODE));
  }

  TERNGRAD_DEVICE void EncodeTile(const Warp& warp, const Source& source,
                                  int64_t begin,
                                  TileWords<kPlanes>* words) const {
    PerLane<int> codes[kTileRows];
    warp.ForLanes([&](int lane) {
      float x[kTileRows];
      Load(source.values, source.type, begin + lane, kWordBits, x);
      PartsFrom parts(source.parts, begin + lane);
      float rate = 0.0f;
#pragma unroll
      for (int row = 0; row < kTileRows; ++row) {
        if (row == 0 || parts.AreMany()) {
          rate = RateOf(source.scales[parts.part()], MAX_CODE);
        }
        if (parts.AreMany()) parts.Next();
        codes[row][lane] = NearestCodeOf<MAX_CODE>(x[row], rate);
      }
    });
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) {
      words->Put(row, [&](int lane, int plane) {
        return (codes[row][lane] >> plane & 1) != 0;
      });
    }
  }
};

// Encodes a tile that has values of several sources, or ends with the bucket.
template <class Encoder>
TERNGRAD_DEVICE static inline void EncodeMixedTile(
    const Warp& warp, const Encoder& encoder, const Items<Source>& sources,
    int64_t first_source, int64_t first_row,
    TileWords<Encoder::kPlanes>* words) {
#pragma unroll 1
  for (int row = 0; row < kTileRows; ++row) {
    PerLane<int> codes;
    warp.ForLanes([&](int lane) {
      const int64_t element = (first_row + row) * kWordBits + lane;
      const Source& source = sources.items[sources.From(first_source, element)];
      const int64_t i = element - source.offset;
      codes[lane] = i < source.size ? encoder.CodeOf(source, i) : 0;
    });
    words->Put(row, [&](int lane, int plane) {
      return (codes[lane] >> plane & 1) != 0;
    });
  }
}

// Writes words[rows * Encoder::kPlanes], the codes of the bucket of all
// sources. Elements after the last source are 0.
template <class Encoder>
TERNGRAD_DEVICE static inline void Encode(const Block& block,
                                          const Source* sources, int64_t count,
                                          const NodeKey& key, int64_t rows,
                                          uint32_t* words) {
  const Encoder encoder(key);
  const Items<Source> items = {sources, count};
  ForTiles(block, items, rows,
           [&](const Warp& warp, int64_t row, int64_t item) {
             const Source& source = sources[item];
             const int64_t begin = row * kWordBits - source.offset;
             TileWords<Encoder::kPlanes> tile(warp);
             int rotation = 0;
             if (IsWithin(source, begin)) {
               encoder.EncodeTile(warp, source, begin, &tile);
               rotation = Encoder::RotationOf(source, begin);
             } else {
               EncodeMixedTile(warp, encoder, items, item, row, &tile);
             }
             tile.Store(rotation, rows - row, words + row * Encoder::kPlanes);
           });
}

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_ENCODE_H_
