// The prefix code in which integers are sent to another process. The format:
// terngrad/prefix_code.py.

#ifndef TERNGRAD_CC_LIB_CODES_PREFIX_CODE_IMPL_H_
#define TERNGRAD_CC_LIB_CODES_PREFIX_CODE_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/codes/bits_impl.h"
#include "terngrad/cc/lib/codes/block_code_impl.h"
#include "terngrad/cc/lib/kernels.h"

namespace terngrad {

// How a payload codes the places of nonzero integers.
inline constexpr uint64_t kInQuads = 0;
inline constexpr uint64_t kOneBitEach = 1;

inline constexpr uint64_t kInBlocks = 2;

inline constexpr int64_t kStreamBytes = sizeof(uint64_t);
inline constexpr uint64_t kQuads = 0x1111111111111111;  // first bit of each

static inline int64_t StreamBytes(int64_t bits) {
  return (bits + 63) / 64 * kStreamBytes;
}

// Extract(x, kQuads) of an x that has no other bits.
static inline uint64_t ExtractQuads(uint64_t x) {
#if defined(__BMI2__)
  return _pext_u64(x, kQuads);
#else
  x = (x | x >> 3) & 0x0303030303030303;
  x = (x | x >> 6) & 0x000F000F000F000F;
  x = (x | x >> 12) & 0x000000FF000000FF;
  return (x | x >> 24) & 0xFFFF;
#endif
}

// Deposit(x, kQuads) of 16 bits.
static inline uint64_t DepositQuads(uint64_t x) {
#if defined(__BMI2__)
  return _pdep_u64(x, kQuads);
#else
  x = (x | x << 24) & 0x000000FF000000FF;
  x = (x | x << 12) & 0x000F000F000F000F;
  x = (x | x << 6) & 0x0303030303030303;
  return (x | x << 3) & kQuads;
#endif
}

namespace {  // of each instruction set

// Reads a stream of a payload.
class BitReader {
 public:
  BitReader() = default;
  // Begins at byte `first` of a payload of `size` >= 8 bytes.
  BitReader(const uint8_t* packed, int64_t size, int64_t first)
      : packed_(packed), last_(size - kStreamBytes), bit_(8 * first) {}

  // count <= 64. The payload has the bits.
  uint64_t Take(uint64_t count) {
    const uint64_t byte = bit_ / 8 < last_ ? bit_ / 8 : last_;
    const uint64_t shift = bit_ - 8 * byte;
    uint64_t bits = 0;
    if (shift < 64) std::memcpy(&bits, packed_ + byte, sizeof(bits));
    bits >>= shift & 63;
    if (count > 64 - shift) {
      bits |= uint64_t{packed_[byte + kStreamBytes]} << (64 - shift);
    }
    bit_ += count;
    return Lowest(bits, count);
  }

 private:
  const uint8_t* packed_ = nullptr;
  uint64_t last_ = 0;  // byte at which the last word begins
  uint64_t bit_ = 0;   // the next one
};

// A stream of a payload that was received.
struct Stream {
  BitReader reader;
  int64_t bits = 0;
  int64_t ones = 0;  // of the bits
};

// Takes the streams of a payload one after another.
class Streams {
 public:
  Streams(const uint8_t* packed, int64_t size)
      : packed_(packed), size_(size), next_(kStreamBytes) {}

  // An empty stream if the payload is too short.
  Stream Next(int64_t bits) {
    const int64_t first = next_;
    next_ += StreamBytes(bits);
    if (next_ > size_) return {};
    Stream stream = {BitReader(packed_, size_, first), bits, 0};
    BitReader reader = stream.reader;
    for (int64_t i = 0; i < bits; i += 64) {
      stream.ones += PopCount(reader.Take(bits - i < 64 ? bits - i : 64));
    }
    return stream;
  }

  bool AreWhole() const { return next_ == size_; }

 private:
  const uint8_t* packed_;
  int64_t size_;
  int64_t next_;  // byte
};

// Where 64 integers, or the last 32, differ from zero.
struct Quads {
  explicit Quads(uint64_t nonzero) {
    const uint64_t odd = nonzero & (nonzero >> 1);
    const uint64_t any = nonzero | nonzero >> 1;
    filled = (any | any >> 2) & kQuads;
    several = (odd | odd >> 2 | (any & any >> 2)) & kQuads;
  }

  uint64_t filled;   // quads with any, in their first bits
  uint64_t several;  // with more than one
};

// Returns about 2^16 x log2(x).
static int64_t TimesLog(int64_t x) {
  if (!x) return 0;
  const int64_t exponent = 63 - __builtin_clzll(x);
  const int64_t fraction = ((x << 16) >> exponent) - 65536;
  const int64_t bend = fraction * (65536 - fraction) >> 16;
  return x * ((exponent << 16) + fraction + (88 * bend >> 8));
}

// Returns about the entropy of `count` bits of which some are 1.
static int64_t Entropy(int64_t count, int64_t ones) {
  return (TimesLog(count) - TimesLog(ones) - TimesLog(count - ones)) >> 16;
}

// How many bits the streams of a payload have.
struct Sizes {
  int64_t filled = 0;   // quads
  int64_t several = 0;  // of them
  int64_t nonzero = 0;

  int64_t InQuads(int64_t rows) const {
    return StreamBytes(8 * rows) + StreamBytes(filled) +
           StreamBytes(2 * (filled - several)) + StreamBytes(4 * several);
  }
};

// Whether blocks may save so much of a payload of `size` bytes that trying them
// is worth the time.
static bool MayBlocksBeShorter(int64_t size, const Sizes& sizes, int64_t rows) {
  const int64_t count = kWordBits * rows;
  const int64_t information = Entropy(count, sizes.nonzero) + sizes.nonzero;
  return rows >= kBlockRows && 8 * size > information + count / 8;
}

// Returns the bytes of the payload, or -1 if they are not fewer than `size`.
static int64_t PackInBlocks(const uint32_t* words, int largest, int64_t rows,
                            uint8_t* packed, int64_t size) {
  const int64_t limit = size - 1 - kStreamBytes;
  if (limit < 0) return -1;
  const int64_t found =
      PackBlocks(words, largest, rows, packed + kStreamBytes, limit);
  if (found < 0) return -1;
  std::memcpy(packed, &kInBlocks, sizeof(kInBlocks));
  return kStreamBytes + found;
}

// Integers in [-1, 1].
class TernaryCode {
 public:
  static int64_t Pack(const uint32_t* words, int64_t rows, uint8_t* packed) {
    const int64_t raw = rows * kPlanes * int64_t{sizeof(uint32_t)};
    const Sizes sizes = Measure(words, rows);
    const bool in_quads = sizes.InQuads(rows) <= StreamBytes(32 * rows);
    const int64_t size =
        kStreamBytes + StreamBytes(sizes.nonzero) +
        (in_quads ? sizes.InQuads(rows) : StreamBytes(32 * rows));
    if (MayBlocksBeShorter(size, sizes, rows)) {
      const int64_t in_blocks =
          PackInBlocks(words, 1, rows, packed, size < raw ? size : raw);
      if (in_blocks >= 0) return in_blocks;
    }
    if (size >= raw) {
      if (raw) std::memcpy(packed, words, raw);
      return raw;
    }
    const uint64_t kind = in_quads ? kInQuads : kOneBitEach;
    std::memcpy(packed, &kind, sizeof(kind));
    if (in_quads) {
      Write<true>(words, rows, sizes, packed + kStreamBytes);
    } else {
      Write<false>(words, rows, sizes, packed + kStreamBytes);
    }
    return size;
  }

  static bool Unpack(uint64_t kind, const uint8_t* packed, int64_t size,
                     int64_t rows, uint32_t* words) {
    if (kind == kInQuads) return Read<true>(packed, size, rows, words);
    return kind == kOneBitEach && Read<false>(packed, size, rows, words);
  }

 private:
  static constexpr int kPlanes = 2;

  struct Signed {
    uint64_t nonzero;
    uint64_t negative;
  };

  // Reads the integers of rows g and g + 1; the latter is 0 if there is none.
  static Signed Load(const uint32_t* words, int64_t g, int64_t rows) {
    const uint32_t* const first = words + g * kPlanes;
    const bool has_next = g + 1 < rows;
    const auto plane = [&](int j) {
      return first[j] | (has_next ? uint64_t{first[kPlanes + j]} << 32 : 0);
    };
    return {plane(0), plane(1)};
  }

  static void Store(const Signed& x, int64_t g, int64_t rows, uint32_t* words) {
    uint32_t* const first = words + g * kPlanes;
    const auto store = [&](int j, uint64_t plane) {
      first[j] = static_cast<uint32_t>(plane);
      if (g + 1 < rows) first[kPlanes + j] = static_cast<uint32_t>(plane >> 32);
    };
    store(0, x.nonzero);
    store(1, x.negative);
  }

  static Sizes Measure(const uint32_t* words, int64_t rows) {
    Sizes sizes;
    for (int64_t g = 0; g < rows; g += 2) {
      const uint64_t at = Load(words, g, rows).nonzero;
      const Quads quads(at);
      sizes.filled += PopCount(quads.filled);
      sizes.several += PopCount(quads.several);
      sizes.nonzero += PopCount(at);
    }
    return sizes;
  }

  template <bool IN_QUADS>
  static void Write(const uint32_t* words, int64_t rows, const Sizes& sizes,
                    uint8_t* out) {
    const auto next = [&out](int64_t bits) {
      BitWriter writer(out);
      out += StreamBytes(bits);
      return writer;
    };
    BitWriter all = next((IN_QUADS ? 8 : 32) * rows);
    BitWriter several = next(IN_QUADS ? sizes.filled : 0);
    BitWriter place = next(IN_QUADS ? 2 * (sizes.filled - sizes.several) : 0);
    BitWriter fours = next(IN_QUADS ? 4 * sizes.several : 0);
    BitWriter sign = next(sizes.nonzero);
    for (int64_t g = 0; g < rows; g += 2) {
      const Signed x = Load(words, g, rows);
      const uint64_t at = x.nonzero;
      const int count = g + 1 < rows ? 64 : 32;
      if constexpr (IN_QUADS) {
        const Quads quads(at);
        all.Put(ExtractQuads(quads.filled), count / 4);
        several.Put(Extract(quads.several, quads.filled),
                    PopCount(quads.filled));
        const uint64_t one = quads.filled & ~quads.several;
        const uint64_t low = (at >> 1 | at >> 3) & one;
        const uint64_t high = (at >> 2 | at >> 3) & one;
        place.Put(Extract(low | high << 1, 3 * one), 2 * PopCount(one));
        fours.Put(Extract(at, 15 * quads.several), 4 * PopCount(quads.several));
      } else {
        all.Put(at, count);
      }
      sign.Put(Extract(x.negative, at), PopCount(at));
    }
    all.Finish();
    several.Finish();
    place.Finish();
    fours.Finish();
    sign.Finish();
  }

  // Returns false if `size` is not that of the streams.
  template <bool IN_QUADS>
  static bool Read(const uint8_t* packed, int64_t size, int64_t rows,
                   uint32_t* words) {
    Streams streams(packed, size);
    Stream all = streams.Next((IN_QUADS ? 8 : 32) * rows);
    Stream several = streams.Next(IN_QUADS ? all.ones : 0);
    const int64_t single = IN_QUADS ? all.ones - several.ones : 0;
    Stream place = streams.Next(2 * single);
    Stream fours = streams.Next(4 * several.ones);
    Stream sign = streams.Next(IN_QUADS ? single + fours.ones : all.ones);
    if (!streams.AreWhole()) return false;
    for (int64_t g = 0; g < rows; g += 2) {
      const int count = g + 1 < rows ? 64 : 32;
      uint64_t at;
      if constexpr (IN_QUADS) {
        const uint64_t filled = DepositQuads(all.reader.Take(count / 4));
        const uint64_t many =
            Deposit(several.reader.Take(PopCount(filled)), filled);
        const uint64_t one = filled & ~many;
        const uint64_t places =
            Deposit(place.reader.Take(2 * PopCount(one)), 3 * one);
        const uint64_t low = places & one, high = places >> 1 & one;
        at = (one & ~low & ~high) | (low & ~high) << 1 | (high & ~low) << 2 |
             (low & high) << 3;
        at |= Deposit(fours.reader.Take(4 * PopCount(many)), 15 * many);
      } else {
        at = all.reader.Take(count);
      }
      const uint64_t negative = Deposit(sign.reader.Take(PopCount(at)), at);
      Store({at, negative}, g, rows, words);
    }
    return true;
  }
};

}  // namespace

template <class Lanes>
int64_t PackPrefix(const uint32_t* words, int largest, int64_t rows,
                   uint8_t* packed) {
  if (largest == 1) return TernaryCode::Pack(words, rows, packed);
  const int64_t raw = rows * PlaneCount(largest) * int64_t{sizeof(uint32_t)};
  const int64_t size = PackInBlocks(words, largest, rows, packed, raw);
  if (size >= 0) return size;
  if (raw) std::memcpy(packed, words, raw);
  return raw;
}

template <class Lanes>
bool UnpackPrefix(const uint8_t* packed, int64_t size, int largest,
                  int64_t rows, uint32_t* words) {
  const int64_t raw = rows * PlaneCount(largest) * int64_t{sizeof(uint32_t)};
  if (size == raw) {
    if (raw) std::memcpy(words, packed, raw);
    return true;
  }
  if (size > raw || size < kStreamBytes) return false;
  uint64_t kind;
  std::memcpy(&kind, packed, sizeof(kind));
  if (kind == kInBlocks) {
    return UnpackBlocks(packed + kStreamBytes, size - kStreamBytes, largest,
                        rows, words);
  }
  return largest == 1 && TernaryCode::Unpack(kind, packed, size, rows, words);
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_CODES_PREFIX_CODE_IMPL_H_
