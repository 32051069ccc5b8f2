// Philox4x32-10 (Salmon et al., SC 2011) and the draws for random codes, one
// element at a time: the definition that vector code follows.

#ifndef TERNGRAD_CC_LIB_PHILOX_H_
#define TERNGRAD_CC_LIB_PHILOX_H_

#include "terngrad/cc/lib/device.h"

namespace terngrad {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9;
inline constexpr uint32_t kPhiloxKeyStep1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

inline constexpr uint32_t kLargestDraw = (1 << 24) - 1;
inline constexpr int kDrawGroup = 128;  // values that get 16 bits of 16 blocks
inline constexpr int kDrawBlocks = 16;
inline constexpr uint64_t kLowBytesFromBlock = uint64_t{1} << 63;

// Identifies the stream of draws of one variable of one node at one step.
struct DrawKey {
  uint64_t seed;
  uint32_t step;
  uint32_t stream;  // node << 16 | variable; of antithetic draws, node / 2
};

struct PhiloxBlock {
  uint32_t words[4];
};

// The functions of this header are static: the linker must not replace a copy
// by one that was compiled for another instruction set.

TERNGRAD_DEVICE static inline uint64_t MultiplyWide(uint32_t a, uint32_t b) {
#ifdef __CUDACC__  // else NVRTC also adds upper halves, which are 0
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t{a} * b;
#endif
}

TERNGRAD_DEVICE static inline PhiloxBlock Philox(const DrawKey& key,
                                                 uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block);
  uint32_t c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = key.step;
  uint32_t c3 = key.stream;
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = MultiplyWide(kPhiloxMultiplier0, c0);
    const uint64_t p1 = MultiplyWide(kPhiloxMultiplier1, c2);
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  return {{c0, c1, c2, c3}};
}

// Returns a word of a block. Not by an index of the array: GPUs would keep it
// in memory.
TERNGRAD_DEVICE static inline uint32_t WordOf(const PhiloxBlock& block, int i) {
  const uint32_t even = i & 2 ? block.words[2] : block.words[0];
  const uint32_t odd = i & 2 ? block.words[3] : block.words[1];
  return i & 1 ? odd : even;
}

// Returns the lower 8 bits of the draw of an element of a variable: value e of
// 256 takes byte (e / 16) % 4 of word e / 64 of block e % 16, counted from
// 2^63.
TERNGRAD_DEVICE static inline uint32_t LowerDraw(const DrawKey& key,
                                                 uint64_t element) {
  const uint32_t in_256 = element % 256;
  const uint64_t block = element / 256 * kDrawBlocks + element % kDrawBlocks;
  const PhiloxBlock low = Philox(key, kLowBytesFromBlock + block);
  return WordOf(low, in_256 / 64) >> (8 * (in_256 / 16 % 4)) & 0xFF;
}

// Returns the upper 16 bits: value e of 128 takes half (e / 16) % 2 of word
// e / 32 of block e % 16.
TERNGRAD_DEVICE static inline uint32_t UpperDraw(const DrawKey& key,
                                                 uint64_t element) {
  const uint32_t in_128 = element % kDrawGroup;
  const uint64_t block =
      element / kDrawGroup * kDrawBlocks + element % kDrawBlocks;
  const PhiloxBlock high = Philox(key, block);
  return WordOf(high, in_128 / 32) >> (16 * (in_128 / 16 % 2)) & 0xFFFF;
}

// Returns the 24-bit draw of an element of a variable.
TERNGRAD_DEVICE static inline uint32_t Draw(const DrawKey& key,
                                            uint64_t element) {
  return UpperDraw(key, element) << 8 | LowerDraw(key, element);
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_PHILOX_H_
