// Integers of many magnitudes in blocks. The format: terngrad/block_code.py.

#ifndef TERNGRAD_CC_LIB_CODES_BLOCK_CODE_IMPL_H_
#define TERNGRAD_CC_LIB_CODES_BLOCK_CODE_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/codes/bit_code_impl.h"
#include "terngrad/cc/lib/kernels.h"

namespace terngrad {
namespace {  // of each instruction set

inline constexpr int64_t kBlockRows = kMaxStream / kWordBits;
inline constexpr int kLeavesOutZeros = 0x80;
inline constexpr int kFewNonzero = 22;           // of 64 integers, or few zeros
inline constexpr int kMaxBits = kMaxPlanes - 1;  // of a magnitude

// A bit of each integer of a block, and two words that Take may read.
using Plane = uint64_t[kStreamWords + 2];

// A constant of each instruction set, unlike std::integral_constant.
template <int VALUE>
struct Number {
  constexpr operator int() const { return VALUE; }
};

// Which integers of a block, and how many.
struct Places {
  Plane at;
  int64_t count = 0;
};

static inline int BitLength(int64_t x) {
  int bits = 0;
  for (; x > 0; x /= 2) ++bits;
  return bits;
}

// The integers of a block.
class Block {
 public:
  Block(int largest, int64_t rows)
      : largest_(largest),
        bits_(PlaneCount(largest) - 1),
        rows_(rows),
        words_((rows + 1) / 2) {}

  // Writes the code; returns its bytes, or -1 if they are more than `limit`.
  int64_t Pack(const uint32_t* words, uint8_t* out, int64_t limit) {
    Load(words);
    FindNonzero();
    const int64_t size = kWordBits * rows_;
    leaves_out_ = 32 * (size - nonzero_.count) >= size;
    limit_ = largest_ - leaves_out_;
    top_ = BitLength(limit_);
    out_ = out;
    left_ = limit;
    SetAll(&valued_);
    if (leaves_out_) Count<true>(nonzero_.at);
    low_ = LowBits(leaves_out_ ? nonzero_.count : size);
    if (--left_ < 0) return -1;
    *out_++ = static_cast<uint8_t>(low_ + kLeavesOutZeros * leaves_out_);
    if (leaves_out_) {
      const int max_ones = low_ ? kFewOnes : kFewNonzero;
      if (!Put(nonzero_.at, valued_, &valued_.count, max_ones)) return -1;
      Copy(nonzero_.at, valued_.at);
    }
    return PutValues() ? out_ - out : -1;
  }

  // Takes the code; returns false if there is none.
  bool Unpack(Unread* unread, uint32_t* words) {
    const int64_t n = words_;  // it stays in a register
    if (!unread->size()) return false;
    const int first = *unread->next++;
    leaves_out_ = first & kLeavesOutZeros;
    low_ = first & ~kLeavesOutZeros;
    limit_ = largest_ - leaves_out_;
    top_ = BitLength(limit_);
    if (low_ >= (top_ ? top_ : 1)) return false;
    unread_ = unread;
    for (int j = top_; j < bits_; ++j) Clear(planes_[j]);
    SetAll(&valued_);
    if (leaves_out_ && !Take(valued_, &valued_)) return false;
    if (!TakeValues()) return false;
    if (leaves_out_) {
      Count<false>(valued_.at);
    } else {
      FindNonzero();  // there is one 0
      for (int64_t i = 0; i < n; ++i) negative_[i] &= nonzero_.at[i];
    }
    Store(words);
    return true;
  }

 private:
  void Copy(const uint64_t* from, uint64_t* plane) const {
    std::memcpy(plane, from, words_ * sizeof(*plane));
  }

  void Clear(uint64_t* plane) const {
    std::memset(plane, 0, words_ * sizeof(*plane));
  }

  void SetAll(Places* places) const {
    places->count = kWordBits * rows_;
    std::memset(places->at, 0xFF, words_ * sizeof(*places->at));
    ClearRest(places->count, places->at);
  }

  // Calls a function with the number of planes, as a constant where they are
  // few.
  template <class Function>
  void WithCount(Function call) const {
    switch (bits_ + 1) {
      case 2:
        return call(Number<2>());
      case 3:
        return call(Number<3>());
      case 4:
        return call(Number<4>());
      case 5:
        return call(Number<5>());
      case 6:
        return call(Number<6>());
      default:
        return call(bits_ + 1);
    }
  }

  uint64_t* PlaneAt(int j) { return j < bits_ ? planes_[j] : negative_; }

  void Load(const uint32_t* words) {
    WithCount([&](auto count) {
      for (int j = 0; j < count; ++j) {
        uint64_t* const plane = PlaneAt(j);
        const uint32_t* next = words + j;
        for (int64_t i = 0; i < rows_ / 2; ++i, next += 2 * count) {
          plane[i] = next[0] | uint64_t{next[count]} << 32;
        }
        if (rows_ % 2) plane[rows_ / 2] = *next;
      }
    });
    Negate();
  }

  void Store(uint32_t* words) {
    Negate();
    WithCount([&](auto count) {
      for (int j = 0; j < count; ++j) {
        const uint64_t* const plane = PlaneAt(j);
        uint32_t* next = words + j;
        for (int64_t i = 0; i < rows_ / 2; ++i, next += 2 * count) {
          next[0] = static_cast<uint32_t>(plane[i]);
          next[count] = static_cast<uint32_t>(plane[i] >> 32);
        }
        if (rows_ % 2) *next = static_cast<uint32_t>(plane[rows_ / 2]);
      }
    });
  }

  // Negates the negative integers in two's complement.
  void Negate() {
    const int64_t n = words_;  // it stays in a register
    if (bits_ == 1) return;    // equal magnitudes
    Plane carry;
    Copy(negative_, carry);
    for (int j = 0; j < bits_; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t flipped = planes_[j][i] ^ negative_[i];
        planes_[j][i] = flipped ^ carry[i];
        carry[i] &= flipped;
      }
    }
  }

  void FindNonzero() {
    const int64_t n = words_;  // it stays in a register
    Copy(planes_[0], nonzero_.at);
    for (int j = 1; j < bits_; ++j) {
      for (int64_t i = 0; i < n; ++i) nonzero_.at[i] |= planes_[j][i];
    }
    nonzero_.count = Ones(nonzero_.at, words_);
  }

  // Adds 1 to the magnitudes `at`, or subtracts it; those are not 0 then.
  template <bool SUBTRACTS>
  void Count(const uint64_t* at) {
    const int64_t n = words_;  // it stays in a register
    Plane carry;
    Copy(at, carry);
    for (int j = 0; j < bits_; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t own = planes_[j][i];
        planes_[j][i] = own ^ carry[i];
        carry[i] &= SUBTRACTS ? ~own : own;
      }
    }
  }

  // Returns the number of low bits that are nearly random, from the mean.
  int LowBits(int64_t count) const {
    int64_t sum = 0;
    for (int j = 0; j < bits_; ++j) sum += Ones(planes_[j], words_) << j;
    const int bits = BitLength(sum / (count ? count : 1));
    const int low = (bits < top_ ? bits : top_) - 1;
    return low < 0 ? 0 : low;
  }

  // larger_[j]: where values are at least 2^j.
  void FindLarger() {
    const int64_t n = words_;  // it stays in a register
    for (int j = top_ - 1; j >= low_; --j) {
      for (int64_t i = 0; i < n; ++i) {
        larger_[j].at[i] =
            planes_[j][i] | (j + 1 < top_ ? larger_[j + 1].at[i] : 0);
      }
    }
  }

  // Values that may be at least 2^j.
  const Places& Candidates(int j) const {
    return j > low_ ? larger_[j - 1] : valued_;
  }

  // Values below the limit whose bit j must be sent.
  const Places& Undecided(int j) const {
    return j < low_ ? valued_ : larger_[j + 1];
  }

  // Leaves out the values that equal the limit.
  void LeaveOut(const Places& is_limit) {
    const auto leave_out = [&](Places* places) {
      const int64_t n = words_;  // it stays in a register
      for (int64_t i = 0; i < n; ++i) places->at[i] &= ~is_limit.at[i];
      places->count -= is_limit.count;
    };
    if (!is_limit.count) return;
    leave_out(&valued_);
    for (int j = low_; j < top_; ++j) leave_out(&larger_[j]);
  }

  bool PutValues() {
    const int64_t n = words_;  // it stays in a register
    if (!Put(negative_, valued_)) return false;
    FindLarger();
    for (int j = low_; j < top_; ++j) {
      if (!Put(&larger_[j], Candidates(j))) return false;
    }
    if (top_) {
      Places is_limit;
      Copy(larger_[top_ - 1].at, is_limit.at);
      for (int j = 0; j + 1 < top_; ++j) {
        const uint64_t other = limit_ >> j & 1 ? 0 : ~uint64_t{0};
        for (int64_t i = 0; i < n; ++i) is_limit.at[i] &= planes_[j][i] ^ other;
      }
      if (!Put(&is_limit, larger_[top_ - 1])) return false;
      LeaveOut(is_limit);
    }
    for (int j = top_ - 2; j >= 0; --j) {
      if (!Put(planes_[j], Undecided(j))) return false;
    }
    return true;
  }

  bool TakeValues() {
    const int64_t n = words_;  // it stays in a register
    if (!Take(valued_, negative_)) return false;
    for (int j = low_; j < top_; ++j) {
      if (!Take(Candidates(j), &larger_[j])) return false;
    }
    if (!top_) return true;
    Places is_limit;
    if (!Take(larger_[top_ - 1], &is_limit)) return false;
    LeaveOut(is_limit);
    Copy(larger_[top_ - 1].at, planes_[top_ - 1]);
    for (int j = top_ - 2; j >= 0; --j) {
      uint64_t* const plane = planes_[j];
      if (!Take(Undecided(j), plane)) return false;
      if (j < low_) continue;
      for (int64_t i = 0; i < n; ++i) {
        plane[i] |= larger_[j].at[i] & ~larger_[j + 1].at[i];
      }
    }
    for (int j = 0; j < top_; ++j) {
      if (!(limit_ >> j & 1)) continue;
      for (int64_t i = 0; i < n; ++i) planes_[j][i] |= is_limit.at[i];
    }
    for (int64_t i = 0; i < n; ++i) valued_.at[i] |= is_limit.at[i];
    return AreInRange();
  }

  bool AreInRange() const {
    if (limit_ + 1 == int64_t{1} << top_) return true;  // more have more bits
    const int64_t n = words_;  // it stays in a register
    Plane above = {}, below = {};
    for (int j = top_ - 1; j >= 0; --j) {
      const uint64_t is_set = limit_ >> j & 1 ? ~uint64_t{0} : 0;
      for (int64_t i = 0; i < n; ++i) {
        above[i] |= ~below[i] & planes_[j][i] & ~is_set;
        below[i] |= ~above[i] & ~planes_[j][i] & is_set;
      }
    }
    uint64_t any = 0;
    for (int64_t i = 0; i < n; ++i) any |= above[i];
    return !any;
  }

  // Writes the bits of a plane at some places, and counts the ones; returns
  // false if they take too many bytes.
  bool Put(const uint64_t* plane, const Places& places) {
    int64_t ones;
    return Put(plane, places, &ones);
  }
  bool Put(Places* some, const Places& places) {
    return Put(some->at, places, &some->count);
  }
  bool Put(const uint64_t* plane, const Places& places, int64_t* ones,
           int max_ones = kFewOnes) {
    const int64_t n = words_;            // it stays in a register
    const int64_t count = places.count;  // `ones` may be there
    Plane bits;
    if (count == kWordBits * rows_) {
      Copy(plane, bits);
    } else if (count) {
      BitWriter writer(reinterpret_cast<uint8_t*>(bits));
      for (int64_t i = 0; i < n; ++i) {
        const int some = PopCount(places.at[i]);
        writer.Put(ExtractMany(plane[i], places.at[i], some), some);
      }
      writer.Finish();
    }
    *ones = Ones(bits, WordsOf(count));
    uint8_t stream[kStreamRoom];
    const int64_t size =
        WriteStream(bits, count, *ones, max_ones, stream) - stream;
    left_ -= size;
    if (left_ < 0) return false;
    std::memcpy(out_, stream, size);
    out_ += size;
    return true;
  }

  // Reads the bits at some places, and counts the ones; returns false if the
  // payload has no such bits. The plane may be that of the places.
  bool Take(const Places& places, uint64_t* plane) {
    int64_t ones;
    return Take(places, plane, &ones);
  }
  bool Take(const Places& places, Places* found) {
    return Take(places, found->at, &found->count);
  }
  bool Take(const Places& places, uint64_t* plane, int64_t* ones) {
    const int64_t count = places.count;  // `ones` may be there
    Plane bits;
    if (!ReadStream(count, unread_, bits)) return false;
    *ones = Ones(bits, WordsOf(count));
    if (!*ones) {
      Clear(plane);
    } else if (count == kWordBits * rows_) {
      Copy(bits, plane);
    } else {
      Spread(bits, places.at, plane);
    }
    return true;
  }

  // Moves bits to the places under a mask, which may be the plane itself.
  void Spread(const uint64_t* bits, const uint64_t* mask, uint64_t* plane) {
    const int64_t n = words_;  // it stays in a register
    int64_t bit = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t* const word = bits + bit / 64;
      const uint64_t some = word[0] >> bit % 64 | word[1] << 1
                                                          << (63 - bit % 64);
      const int ones = PopCount(mask[i]);
      bit += ones;
      plane[i] = DepositMany(some, mask[i], ones);
    }
  }

  const int largest_;
  const int bits_;  // of a magnitude
  const int64_t rows_;
  const int64_t words_;
  bool leaves_out_ = false;  // zeros
  int64_t limit_ = 0;        // of values
  int top_ = 0;              // bits of values
  int low_ = 0;              // k: low bits, sent of all values
  uint8_t* out_ = nullptr;
  int64_t left_ = 0;  // bytes that may be written
  Unread* unread_ = nullptr;
  Plane planes_[kMaxBits];  // magnitudes, or values
  Places larger_[kMaxBits];
  Plane negative_;
  Places nonzero_;
  Places valued_;  // integers that have a value
};

// Writes integers, block by block; returns the bytes, or -1 if they are more
// than `limit`.
static int64_t PackBlocks(const uint32_t* words, int largest, int64_t rows,
                          uint8_t* out, int64_t limit) {
  int64_t size = 0;
  for (int64_t g = 0; g < rows; g += kBlockRows) {
    Block block(largest, rows - g < kBlockRows ? rows - g : kBlockRows);
    const int64_t added =
        block.Pack(words + g * PlaneCount(largest), out + size, limit - size);
    if (added < 0) return -1;
    size += added;
  }
  return size;
}

// Returns false if the bytes are no code of these integers.
static bool UnpackBlocks(const uint8_t* packed, int64_t size, int largest,
                         int64_t rows, uint32_t* words) {
  Unread unread = {packed, packed + size};
  for (int64_t g = 0; g < rows; g += kBlockRows) {
    Block block(largest, rows - g < kBlockRows ? rows - g : kBlockRows);
    if (!block.Unpack(&unread, words + g * PlaneCount(largest))) return false;
  }
  return !unread.size();
}

}  // namespace
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_CODES_BLOCK_CODE_IMPL_H_
