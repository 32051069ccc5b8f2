// Streams of bits that are mostly 0, or mostly 1. The format:
// terngrad/bit_code.py.

#ifndef TERNGRAD_CC_LIB_CODES_BIT_CODE_IMPL_H_
#define TERNGRAD_CC_LIB_CODES_BIT_CODE_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/codes/bits_impl.h"

namespace terngrad {
namespace {  // of each instruction set

inline constexpr int kLongestWord = 11;  // bits of a code word
inline constexpr int kBitCodes = 5;

// How many octets have a code word of 1, 2, ..., 11 bits.
inline constexpr int kWordCounts[kBitCodes][kLongestWord] = {
    {1, 0, 0, 1, 7, 0, 0, 28, 0, 5, 214},
    {0, 1, 0, 4, 4, 0, 28, 0, 22, 35, 162},
    {0, 0, 1, 0, 8, 9, 19, 56, 3, 68, 92},
    {0, 0, 0, 0, 1, 8, 28, 121, 61, 31, 6},
    {0, 0, 5, 3, 0, 0, 0, 13, 15, 0, 220},  // of octets other than 0
};
// In 64 bits; with more ones the next code is shorter, or at last none.
inline constexpr int kMaxOnes[] = {7, 12, 19, 28};
inline constexpr int kFewOnes = kMaxOnes[3];

// The first byte of a stream is one of these, or the number of a code, from 1.
inline constexpr int kPlain = 0;
inline constexpr int kNoOnes = 6;
inline constexpr int kInSparse = 8;   // added where zero octets are left out
inline constexpr int kInverted = 16;  // added where all bits are inverted
inline constexpr int64_t kSparseBits = 64;

// Many octets are coded in four parts, which are read at the same time.
inline constexpr int kParts = 4;
inline constexpr int64_t kDividedOctets = 128;
static inline int PartsOf(int64_t octets) {
  return octets < kDividedOctets ? 1 : kParts;
}
inline constexpr int64_t kSizeBytes = sizeof(uint16_t);  // of a part's size

inline constexpr int64_t kMaxStream = 1 << 14;  // bits
inline constexpr int64_t kStreamWords = kMaxStream / 64;
// Bytes that WriteStream may write, also where it then writes a shorter form.
inline constexpr int64_t kStreamRoom = 2 * kMaxStream / 8;

struct CodeWord {
  uint16_t bits = 0;  // the first one lowest
  uint16_t length = 0;
};

struct BitCode {
  CodeWord words[256] = {};
  // The length of the word that any 11 bits begin with, and above it the octet.
  uint16_t found[1 << kLongestWord] = {};
};

static constexpr int Reversed(int bits, int length) {
  int reversed = 0;
  for (int i = 0; i < length; ++i)
    reversed |= (bits >> i & 1) << (length - 1 - i);
  return reversed;
}

// A canonical code: octets with fewer ones come first, then smaller ones. In
// the last code octet 0 comes last.
static constexpr BitCode MakeBitCode(int number) {
  const int* const counts = kWordCounts[number];
  const bool zero_is_last = number + 1 == kBitCodes;
  BitCode code;
  int word = 0, length = 1, left = counts[0];
  for (int rank = 0; rank <= 9; ++rank) {
    for (int octet = 0; octet < 256; ++octet) {
      const int ones = __builtin_popcount(octet);
      if ((ones || !zero_is_last ? ones : 9) != rank) continue;
      for (; left == 0; left = counts[length++]) word <<= 1;
      const int first = Reversed(word, length);
      code.words[octet].bits = static_cast<uint16_t>(first);
      code.words[octet].length = static_cast<uint16_t>(length);
      for (int i = first; i < 1 << kLongestWord; i += 1 << length) {
        code.found[i] = static_cast<uint16_t>(length | octet << 8);
      }
      ++word;
      --left;
    }
  }
  return code;
}

inline constexpr BitCode kCodeOf[kBitCodes] = {MakeBitCode(0), MakeBitCode(1),
                                               MakeBitCode(2), MakeBitCode(3),
                                               MakeBitCode(4)};

static inline int64_t WordsOf(int64_t bits) { return (bits + 63) / 64; }

// Clears the bits of the last word that are not among the first `count`.
static inline void ClearRest(int64_t count, uint64_t* words) {
  if (count % 64) words[count / 64] = Lowest(words[count / 64], count % 64);
}

static inline int64_t Ones(const uint64_t* words, int64_t count) {
  int64_t ones = 0;
  for (int64_t i = 0; i < count; ++i) ones += PopCount(words[i]);
  return ones;
}

// Returns a bit for each octet: whether it differs from 0.
static inline uint64_t FilledOctets(uint64_t octets) {
  constexpr uint64_t kLow = 0x7F7F7F7F7F7F7F7F;
  const uint64_t highest = (((octets & kLow) + kLow) | octets) & ~kLow;
  return (highest >> 7) * 0x0102040810204080 >> 56;
}

// Returns octets of ones where 8 bits are 1.
static inline uint64_t OctetsAt(uint64_t filled) {
  constexpr uint64_t kLow = 0x7F7F7F7F7F7F7F7F;
  const uint64_t at = filled * 0x0101010101010101 & 0x8040201008040201;
  return ((((at & kLow) + kLow) | at) >> 7 & 0x0101010101010101) * 0xFF;
}

static inline int ShortestCode(int64_t ones, int64_t octets) {
  int code = 1;
  for (const int limit : kMaxOnes) {
    if (8 * ones <= limit * octets) return code;
    ++code;
  }
  return kPlain;
}

// Writes code words and returns the end. Up to 8 bytes after that change.
static uint8_t* WriteWords(const BitCode& code, const uint8_t* octets,
                           int64_t count, uint8_t* out) {
  uint64_t waiting = 0, fill = 0;
  const auto put = [&](uint8_t octet) {
    waiting |= uint64_t{code.words[octet].bits} << fill;
    fill += code.words[octet].length;
  };
  const auto flush = [&] {
    std::memcpy(out, &waiting, sizeof(waiting));
    out += fill / 8;
    waiting >>= fill / 8 * 8;
    fill %= 8;
  };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {  // as many words as fit behind 7 bits
    for (int j = 0; j < 4; ++j) put(octets[i + j]);
    flush();
  }
  for (; i < count; ++i) put(octets[i]);
  flush();
  return out + (fill > 0);
}

// Writes octets and returns the end. Up to 8 bytes after that change.
static uint8_t* WriteOctets(int code, const uint8_t* octets, int64_t count,
                            uint8_t* out) {
  if (code == kPlain) {
    std::memcpy(out, octets, count);
    return out + count;
  }
  const int parts = PartsOf(count);
  const int64_t in_part = count / parts;
  uint8_t* next = out + kSizeBytes * (parts - 1);
  for (int i = 0; i < parts; ++i) {
    const int64_t first = i * in_part;
    const bool is_last = i + 1 == parts;
    uint8_t* const end = WriteWords(kCodeOf[code - 1], octets + first,
                                    is_last ? count - first : in_part, next);
    const uint16_t size = static_cast<uint16_t>(end - next);
    if (!is_last) std::memcpy(out + kSizeBytes * i, &size, sizeof(size));
    next = end;
  }
  return next;
}

// Writes a stream and returns its end. `bits` are whole words, which are 0
// after the first `count` <= kMaxStream bits, and one more; they change. `ones`
// of the bits are 1. Where more than `max_ones` of 64 are 1, and more are 0,
// they stay as they are.
static uint8_t* WriteStream(uint64_t* bits, int64_t count, int64_t ones,
                            int max_ones, uint8_t* out) {
  if (!count) return out;
  const int64_t words = WordsOf(count), size = (count + 7) / 8;
  const bool is_inverted = 2 * ones > count;
  const auto invert = [&] {
    for (int64_t i = 0; i < words; ++i) bits[i] = ~bits[i];
    ClearRest(count, bits);
  };
  if (is_inverted) {
    invert();
    ones = count - ones;
  }
  int mode = kNoOnes;
  uint8_t* end = out + 1;
  if (ones) {
    uint64_t filled[kStreamWords / 8 + 1] = {};
    int64_t some = size;
    if (count >= kSparseBits) {
      for (int64_t i = 0; i < words; ++i) {
        filled[i / 8] |= FilledOctets(bits[i]) << i % 8 * 8;
      }
      some = Ones(filled, WordsOf(size));
    }
    const auto* octets = reinterpret_cast<const uint8_t*>(bits);
    uint8_t packed[kMaxStream / 8 + 8];
    if (3 * some <= size) {
      uint8_t* next = packed;
      for (int64_t i = 0; i < words; ++i) {
        const uint64_t at = filled[i / 8] >> i % 8 * 8 & 0xFF;
        const uint64_t kept = Extract(bits[i], OctetsAt(at));
        std::memcpy(next, &kept, sizeof(kept));
        next += PopCount(at);
      }
      const int code =
          4 * (ones - some) <= some ? kBitCodes : ShortestCode(ones, some);
      mode = kInSparse + code;
      end = WriteStream(filled, size, some, kFewOnes, end);
      end = WriteOctets(code, packed, some, end);
    } else {
      const bool is_few = 8 * ones <= max_ones * size;
      mode = is_few ? ShortestCode(ones, size) : kPlain;
      if (mode != kPlain) end = WriteOctets(mode, octets, size, end);
    }
    if (mode == kPlain || end - out > size) {
      if (is_inverted) invert();
      *out = kPlain;
      std::memcpy(out + 1, bits, size);
      return out + 1 + size;
    }
  }
  *out = mode + kInverted * is_inverted;
  return end;
}

// The unread rest of a payload.
struct Unread {
  const uint8_t* next;
  const uint8_t* end;

  int64_t size() const { return end - next; }
};

// Reads code words.
class WordReader {
 public:
  // What may be loaded ends at `end`; the words may end before.
  WordReader(const BitCode& code, const uint8_t* begin, const uint8_t* end)
      : found_(code.found), next_(begin), end_(end) {}

  // Returns the end of the words that were taken.
  const uint8_t* next() const { return next_ + (bit_ > 0); }

  // Loads bits of kAhead words, if 8 bytes are left. Above them is a 1, which
  // tells how many were taken.
  static constexpr int kAhead = 5;
  bool CanLoad() const { return end_ - next_ >= int64_t{sizeof(ahead_)}; }
  void Load() {
    std::memcpy(&ahead_, next_, sizeof(ahead_));
    ahead_ = (ahead_ | kHighest) >> bit_;
  }
  void Unload() {
    const int taken = __builtin_clzll(ahead_);
    next_ += taken / 8;
    bit_ = taken % 8;
  }

  uint8_t Take() {
    const uint16_t found = found_[ahead_ & ((1 << kLongestWord) - 1)];
    ahead_ >>= found & 63;
    return static_cast<uint8_t>(found >> 8);
  }

  // Reads octets; returns false if there are fewer.
  bool Take(int64_t count, uint8_t* octets) {
    int64_t i = 0;
    for (; i + kAhead <= count && CanLoad(); i += kAhead) {
      Load();
      for (int j = 0; j < kAhead; ++j) octets[i + j] = Take();
      Unload();
    }
    for (; i < count && next_ < end_; ++i) {
      const int64_t left = end_ - next_;
      ahead_ = 0;
      std::memcpy(&ahead_, next_, left < 8 ? left : 8);
      ahead_ = (ahead_ | kHighest) >> bit_;
      octets[i] = Take();
      Unload();
    }
    return i == count && next() <= end_;
  }

 private:
  static constexpr uint64_t kHighest = uint64_t{1} << 63;

  const uint16_t* found_;
  const uint8_t* next_;  // the byte of the next bit
  const uint8_t* end_;
  int bit_ = 0;  // of the byte
  uint64_t ahead_ = 0;
};

// Reads octets in four parts; returns false if there are fewer.
static bool ReadParts(const BitCode& code, int64_t count, Unread* unread,
                      uint8_t* octets) {
  constexpr int64_t kSizes = kSizeBytes * (kParts - 1);
  if (unread->size() < kSizes) return false;
  const uint8_t* begin[kParts] = {unread->next + kSizes};
  for (int i = 0; i + 1 < kParts; ++i) {
    uint16_t size;
    std::memcpy(&size, unread->next + kSizeBytes * i, sizeof(size));
    if (size > unread->end - begin[i]) return false;
    begin[i + 1] = begin[i] + size;
  }
  const uint8_t* const end = unread->end;
  // Variables, not an array, so that they stay in registers.
  WordReader a(code, begin[0], end), b(code, begin[1], end);
  WordReader c(code, begin[2], end), d(code, begin[3], end);
  const int64_t in_part = count / kParts;
  int64_t i = 0;
  const auto can_load = [&] {
    return a.CanLoad() && b.CanLoad() && c.CanLoad() && d.CanLoad();
  };
  while (i + WordReader::kAhead <= in_part && can_load()) {
    a.Load(), b.Load(), c.Load(), d.Load();
    for (int j = 0; j < WordReader::kAhead; ++j, ++i) {
      octets[i] = a.Take();
      octets[i + in_part] = b.Take();
      octets[i + 2 * in_part] = c.Take();
      octets[i + 3 * in_part] = d.Take();
    }
    a.Unload(), b.Unload(), c.Unload(), d.Unload();
  }
  WordReader* const parts[] = {&a, &b, &c, &d};
  for (int k = 0; k < kParts; ++k) {
    const bool is_last = k + 1 == kParts;
    const int64_t left = (is_last ? count - k * in_part : in_part) - i;
    if (!parts[k]->Take(left, octets + k * in_part + i)) return false;
    if (!is_last && parts[k]->next() != begin[k + 1]) return false;
  }
  unread->next = d.next();
  return true;
}

// Reads octets; returns false if there are fewer.
static bool ReadOctets(int code, int64_t count, Unread* unread,
                       uint8_t* octets) {
  if (code == kPlain) {
    if (count > unread->size()) return false;
    std::memcpy(octets, unread->next, count);
    unread->next += count;
    return true;
  }
  const BitCode& words = kCodeOf[code - 1];
  if (PartsOf(count) > 1) return ReadParts(words, count, unread, octets);
  WordReader reader(words, unread->next, unread->end);
  if (!reader.Take(count, octets)) return false;
  unread->next = reader.next();
  return true;
}

// Reads a stream. `bits` becomes whole words, which are 0 after the first
// `count` <= kMaxStream bits; the word after them changes. Returns false if
// there is none.
static bool ReadStream(int64_t count, Unread* unread, uint64_t* bits) {
  if (!count) return true;
  if (!unread->size()) return false;
  const int mode = *unread->next++, code = mode & 7;
  const bool in_sparse = mode & kInSparse;
  if (mode >= 2 * kInverted || code > (in_sparse ? kBitCodes : kNoOnes)) {
    return false;
  }
  // A stream within a stream is shorter, so this bounds the recursion, too.
  if (in_sparse && count < kSparseBits) return false;
  const int64_t words = WordsOf(count), size = (count + 7) / 8;
  auto* const octets = reinterpret_cast<uint8_t*>(bits);
  if (in_sparse) {
    uint64_t filled[kStreamWords / 8 + 1];
    uint8_t packed[kMaxStream / 8 + 8];
    if (!ReadStream(size, unread, filled)) return false;
    const int64_t some = Ones(filled, WordsOf(size));
    if (!ReadOctets(code, some, unread, packed)) return false;
    const uint8_t* next = packed;
    for (int64_t i = 0; i < words; ++i) {
      const uint64_t at = filled[i / 8] >> i % 8 * 8 & 0xFF;
      uint64_t kept;
      std::memcpy(&kept, next, sizeof(kept));
      bits[i] = Deposit(kept, OctetsAt(at));
      next += PopCount(at);
    }
  } else if (code == kNoOnes) {
    std::memset(bits, 0, words * sizeof(*bits));
  } else if (!ReadOctets(code, size, unread, octets)) {
    return false;
  }
  if (mode & kInverted) {
    for (int64_t i = 0; i < words; ++i) bits[i] = ~bits[i];
  }
  ClearRest(count, bits);
  return true;
}

}  // namespace
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_CODES_BIT_CODE_IMPL_H_
