// Moving bits within words.

#ifndef TERNGRAD_CC_LIB_CODES_BITS_IMPL_H_
#define TERNGRAD_CC_LIB_CODES_BITS_IMPL_H_

#include <cstdint>
#include <cstring>

#if defined(__BMI2__)
#include <immintrin.h>
#endif

namespace terngrad {

static inline int PopCount(uint64_t x) { return __builtin_popcountll(x); }

// Moves the bits of x under the mask together, to the lowest places.
static inline uint64_t Extract(uint64_t x, uint64_t mask) {
#if defined(__BMI2__)
  return _pext_u64(x, mask);
#else
  if (!~mask) return x;
  uint64_t found = 0;
  for (int i = 0; mask; mask &= mask - 1, ++i) {
    found |= uint64_t{(x & mask & -mask) != 0} << i;
  }
  return found;
#endif
}

// The inverse: moves the lowest bits of x to the places under the mask.
static inline uint64_t Deposit(uint64_t x, uint64_t mask) {
#if defined(__BMI2__)
  return _pdep_u64(x, mask);
#else
  if (!~mask) return x;
  uint64_t found = 0;
  for (; mask; mask &= mask - 1, x >>= 1) found |= mask & -mask & -(x & 1);
  return found;
#endif
}

#if !defined(__BMI2__)
inline constexpr int kFewBits = 24;  // under a mask, which move one by one

// Finds which bits under the mask move by 1, 2, 4, ..., 32 places when they
// move together. Source: Warren, Hacker's Delight, 2nd edition, section 7-4.
static inline void FindMoves(uint64_t mask, uint64_t* moves) {
  uint64_t zeros = ~mask << 1;  // those below decide how far a bit moves
  for (int i = 0; i < 6; ++i) {
    uint64_t odd = zeros;  // where their number is odd
    for (int j = 0; j < 6; ++j) odd ^= odd << (1 << j);
    moves[i] = odd & mask;
    mask = (mask ^ moves[i]) | moves[i] >> (1 << i);
    zeros &= ~odd;
  }
}
#endif

// Extract with a mask of `count` bits, which may be many.
static inline uint64_t ExtractMany(uint64_t x, uint64_t mask,
                                   [[maybe_unused]] int count) {
#if !defined(__BMI2__)
  if (count > kFewBits && ~mask) {
    uint64_t moves[6];
    FindMoves(mask, moves);
    x &= mask;
    for (int i = 0; i < 6; ++i) {
      const uint64_t moved = x & moves[i];
      x = (x ^ moved) | moved >> (1 << i);
    }
    return x;
  }
#endif
  return Extract(x, mask);
}

static inline uint64_t DepositMany(uint64_t x, uint64_t mask,
                                   [[maybe_unused]] int count) {
#if !defined(__BMI2__)
  if (count > kFewBits && ~mask) {
    uint64_t moves[6];
    FindMoves(mask, moves);
    for (int i = 5; i >= 0; --i) {
      x = (x & ~moves[i]) | (x << (1 << i) & moves[i]);
    }
    return x & mask;
  }
#endif
  return Deposit(x, mask);
}

// Clears all but the lowest bits; count <= 64.
static inline uint64_t Lowest(uint64_t bits, uint64_t count) {
#if defined(__BMI2__)
  return _bzhi_u64(bits, count);
#else
  return count < 64 ? bits & ((uint64_t{1} << count) - 1) : bits;
#endif
}

namespace {  // of each instruction set

// Writes a stream of bits. It branches seldom: how many bits come is random.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out = nullptr) : out_(out) {}

  // The bits above the lowest `count` are 0; count <= 64.
  void Put(uint64_t bits, uint64_t count) {
    word_ |= bits << fill_;
    const uint64_t end = fill_ + count;
    if (!end) return;  // perhaps the stream is complete: the next one follows
    std::memcpy(out_, &word_, sizeof(word_));
    const uint64_t rest = bits >> 1 >> (63 - fill_);
    const uint64_t is_full = end / 64;
    out_ += is_full * int64_t{sizeof(word_)};
    word_ ^= (word_ ^ rest) & -is_full;
    fill_ = end % 64;
  }

  void Finish() {
    if (fill_) std::memcpy(out_, &word_, sizeof(word_));
  }

 private:
  uint8_t* out_;
  uint64_t word_ = 0;
  uint64_t fill_ = 0;  // < 64
};

}  // namespace
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_CODES_BITS_IMPL_H_
