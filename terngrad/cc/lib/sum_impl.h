// The kernel that adds codes.
//
// Everything is static or a template of the lanes: see kernels_impl.h.

#ifndef TERNGRAD_CC_LIB_SUM_IMPL_H_
#define TERNGRAD_CC_LIB_SUM_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/ranges_impl.h"

namespace terngrad {

inline constexpr int kTile = 64;  // words per plane that are summed at once

// Planes of up to kTile groups, each plane's words side by side.
using Tile = uint32_t[kMaxPlanes][kTile];

// PLANES = 0 means that the number is known at run time only.
template <int PLANES>
static inline void LoadTile(const uint32_t* words, int count, int planes,
                            Tile& tile) {
  const int k = PLANES ? PLANES : planes;
  for (int g = 0; g < count; ++g) {
    for (int j = 0; j < k; ++j) tile[j][g] = words[g * k + j];
  }
}

template <int PLANES>
static inline void StoreTile(const Tile& tile, int count, int planes,
                             uint32_t* words) {
  const int k = PLANES ? PLANES : planes;
  for (int g = 0; g < count; ++g) {
    for (int j = 0; j < k; ++j) words[g * k + j] = tile[j][g];
  }
}

// total += addend modulo 2^planes, by carry logic on whole words.
static inline void AddTile(const Tile& addend, int addend_planes, int planes,
                           Tile& total) {
  uint32_t carry[kTile] = {};
  for (int j = 0; j < planes; ++j) {
    const uint32_t* b = addend[j < addend_planes ? j : addend_planes - 1];
    uint32_t* a = total[j];
    for (int g = 0; g < kTile; ++g) {
      const uint32_t differ = a[g] ^ b[g];
      const uint32_t both = a[g] & b[g];
      a[g] = differ ^ carry[g];
      carry[g] = both | (differ & carry[g]);
    }
  }
}

template <class Lanes>
struct SumKernel {
  static void Run(const Planes* inputs, int64_t input_count, int planes,
                  int64_t begin, int64_t end, uint32_t* total) {
    Tile sum, addend;
    std::memset(
        addend, 0,
        sizeof(addend));  // a last, shorter tile leaves words as they are
    for (int64_t g = begin; g < end; g += kTile) {
      const int count = static_cast<int>(Smaller(kTile, end - g));
      Add(inputs, input_count, planes, g, count, addend, sum);
      Store(sum, count, planes, total + g * planes);
    }
  }

 private:
  // Adds `count` groups of the inputs, from group `first` on.
  static void Add(const Planes* inputs, int64_t input_count, int planes,
                  int64_t first, int count, Tile& addend, Tile& sum) {
    std::memset(sum, 0, planes * sizeof(sum[0]));
    for (int64_t i = 0; i < input_count; ++i) {
      Load(inputs[i], first, count, addend);
      AddTile(addend, inputs[i].planes, planes, sum);
    }
  }

  static void Load(const Planes& input, int64_t first, int count, Tile& tile) {
    const uint32_t* words = input.words + first * input.planes;
    switch (input.planes) {
      case 2:
        return LoadTile<2>(words, count, 2, tile);
      case 3:
        return LoadTile<3>(words, count, 3, tile);
      case 4:
        return LoadTile<4>(words, count, 4, tile);
      default:
        return LoadTile<0>(words, count, input.planes, tile);
    }
  }

  static void Store(const Tile& tile, int count, int planes, uint32_t* words) {
    switch (planes) {
      case 2:
        return StoreTile<2>(tile, count, 2, words);
      case 3:
        return StoreTile<3>(tile, count, 3, words);
      case 4:
        return StoreTile<4>(tile, count, 4, words);
      default:
        return StoreTile<0>(tile, count, planes, words);
    }
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_SUM_IMPL_H_
