// Integers of many magnitudes in blocks. The format: terngrad/block_code.py.

#ifndef TERNGRAD_CC_LIB_BLOCK_CODE_IMPL_H_
#define TERNGRAD_CC_LIB_BLOCK_CODE_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/bit_code_impl.h"
#include "terngrad/cc/lib/kernels.h"

namespace terngrad {
namespace {  // of each instruction set

inline constexpr int64_t kBlockRows = kMaxStream / kWordBits;
inline constexpr int kLeavesOutZeros = 0x80;
inline constexpr int kMaxBits = kMaxPlanes - 1;  // of a magnitude

// A bit of each integer of a block, and two words that Take may read.
using Plane = uint64_t[kStreamWords + 2];

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

  // Writes the code; returns its bytes, or -1 if they are more than `most`.
  int64_t Pack(const uint32_t* words, uint8_t* out, int64_t most) {
    Load(words);
    int64_t zeros = kWordBits * rows_ - FindNonzero();
    leaves_out_ = 32 * zeros >= kWordBits * rows_;
    limit_ = largest_ - leaves_out_;
    top_ = BitLength(limit_);
    out_ = out;
    left_ = most;
    SetAll(at_);
    if (leaves_out_) {
      std::memcpy(at_, nonzero_, words_ * sizeof(*at_));
      Count<true>(at_);
    }
    low_ = LowBits();
    if (--left_ < 0) return -1;
    *out_++ = static_cast<uint8_t>(low_ + kLeavesOutZeros * leaves_out_);
    Plane all;
    SetAll(all);
    if (leaves_out_ && !Put(at_, all)) return -1;
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
    std::memset(planes_, 0, bits_ * sizeof(Plane));
    SetAll(at_);
    if (leaves_out_ && !Take(at_, at_)) return false;
    if (!TakeValues()) return false;
    if (leaves_out_) Count<false>(at_);
    FindNonzero();  // there is one 0
    for (int64_t i = 0; i < n; ++i) negative_[i] &= nonzero_[i];
    Store(words);
    return true;
  }

 private:
  void SetAll(uint64_t* plane) const {
    std::memset(plane, 0xFF, words_ * sizeof(*plane));
    ClearRest(kWordBits * rows_, plane);
  }

  void Load(const uint32_t* words) {
    const int count = bits_ + 1;
    for (int j = 0; j < count; ++j) {
      uint64_t* const plane = j < bits_ ? planes_[j] : negative_;
      for (int64_t i = 0; i < rows_ / 2; ++i) {
        plane[i] = words[2 * i * count + j] |
                   uint64_t{words[(2 * i + 1) * count + j]} << 32;
      }
      if (rows_ % 2) plane[rows_ / 2] = words[(rows_ - 1) * count + j];
    }
    Negate();
  }

  void Store(uint32_t* words) {
    Negate();
    const int count = bits_ + 1;
    for (int j = 0; j < count; ++j) {
      const uint64_t* const plane = j < bits_ ? planes_[j] : negative_;
      for (int64_t i = 0; i < rows_ / 2; ++i) {
        words[2 * i * count + j] = static_cast<uint32_t>(plane[i]);
        words[(2 * i + 1) * count + j] = static_cast<uint32_t>(plane[i] >> 32);
      }
      if (rows_ % 2) {
        words[(rows_ - 1) * count + j] =
            static_cast<uint32_t>(plane[rows_ / 2]);
      }
    }
  }

  // Negates the negative integers in two's complement.
  void Negate() {
    const int64_t n = words_;  // it stays in a register
    if (bits_ == 1) return;    // equal magnitudes
    Plane carry;
    std::memcpy(carry, negative_, words_ * sizeof(*carry));
    for (int j = 0; j < bits_; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t flipped = planes_[j][i] ^ negative_[i];
        planes_[j][i] = flipped ^ carry[i];
        carry[i] &= flipped;
      }
    }
  }

  // Returns how many integers differ from 0.
  int64_t FindNonzero() {
    const int64_t n = words_;  // it stays in a register
    std::memcpy(nonzero_, planes_[0], words_ * sizeof(*nonzero_));
    for (int j = 1; j < bits_; ++j) {
      for (int64_t i = 0; i < n; ++i) nonzero_[i] |= planes_[j][i];
    }
    return Ones(nonzero_, words_);
  }

  // Adds 1 to the magnitudes `at`, or subtracts it; those are not 0 then.
  template <bool SUBTRACTS>
  void Count(const uint64_t* at) {
    const int64_t n = words_;  // it stays in a register
    Plane carry;
    std::memcpy(carry, at, words_ * sizeof(*carry));
    for (int j = 0; j < bits_; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t own = planes_[j][i];
        planes_[j][i] = own ^ carry[i];
        carry[i] &= SUBTRACTS ? ~own : own;
      }
    }
  }

  // Returns the number of low bits that are nearly random, from the mean.
  int LowBits() const {
    const int64_t count = Ones(at_, words_);
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
        larger_[j][i] = planes_[j][i] | (j + 1 < top_ ? larger_[j + 1][i] : 0);
      }
    }
  }

  // Clears at_ where values are the limit, and larger_ above 2^low, too.
  void LeaveOut(const uint64_t* is_limit) {
    const int64_t n = words_;  // it stays in a register
    for (int64_t i = 0; i < n; ++i) at_[i] &= ~is_limit[i];
    for (int j = low_; j < top_; ++j) {
      for (int64_t i = 0; i < n; ++i) larger_[j][i] &= ~is_limit[i];
    }
  }

  bool PutValues() {
    const int64_t n = words_;  // it stays in a register
    if (!Put(negative_, at_)) return false;
    FindLarger();
    for (int j = low_; j < top_; ++j) {
      if (!Put(larger_[j], j > low_ ? larger_[j - 1] : at_)) return false;
    }
    if (top_) {
      Plane is_limit;
      std::memcpy(is_limit, larger_[top_ - 1], words_ * sizeof(*is_limit));
      for (int j = 0; j + 1 < top_; ++j) {
        const uint64_t other = limit_ >> j & 1 ? 0 : ~uint64_t{0};
        for (int64_t i = 0; i < n; ++i) is_limit[i] &= planes_[j][i] ^ other;
      }
      if (!Put(is_limit, larger_[top_ - 1])) return false;
      LeaveOut(is_limit);
    }
    for (int j = top_ - 2; j >= 0; --j) {
      if (!Put(planes_[j], j < low_ ? at_ : larger_[j + 1])) return false;
    }
    return true;
  }

  bool TakeValues() {
    const int64_t n = words_;  // it stays in a register
    if (!Take(at_, negative_)) return false;
    for (int j = low_; j < top_; ++j) {
      if (!Take(j > low_ ? larger_[j - 1] : at_, larger_[j])) return false;
    }
    if (!top_) return true;
    Plane is_limit;
    if (!Take(larger_[top_ - 1], is_limit)) return false;
    LeaveOut(is_limit);
    std::memcpy(planes_[top_ - 1], larger_[top_ - 1],
                words_ * sizeof(uint64_t));
    for (int j = top_ - 2; j >= 0; --j) {
      uint64_t* const plane = planes_[j];
      if (!Take(j < low_ ? at_ : larger_[j + 1], plane)) return false;
      if (j < low_) continue;
      for (int64_t i = 0; i < n; ++i) {
        plane[i] |= larger_[j][i] & ~larger_[j + 1][i];
      }
    }
    for (int j = 0; j < top_; ++j) {
      if (!(limit_ >> j & 1)) continue;
      for (int64_t i = 0; i < n; ++i) planes_[j][i] |= is_limit[i];
    }
    for (int64_t i = 0; i < n; ++i) at_[i] |= is_limit[i];
    return AreInRange();
  }

  bool AreInRange() const {
    const int64_t n = words_;  // it stays in a register
    uint64_t any = 0;
    for (int64_t i = 0; i < n; ++i) {
      uint64_t above = 0, below = 0;
      for (int j = top_ - 1; j >= 0; --j) {
        const uint64_t is_set = limit_ >> j & 1 ? ~uint64_t{0} : 0;
        above |= ~below & planes_[j][i] & ~is_set;
        below |= ~above & ~planes_[j][i] & is_set;
      }
      any |= above;
    }
    return !any;
  }

  // Writes the bits of a plane under a mask; false if they are too many.
  bool Put(const uint64_t* plane, const uint64_t* mask) {
    const int64_t n = words_;  // it stays in a register
    Plane bits;
    int64_t count = 0;
    BitWriter writer(reinterpret_cast<uint8_t*>(bits));
    for (int64_t i = 0; i < n; ++i) {
      const int ones = PopCount(mask[i]);
      writer.Put(ExtractMany(plane[i], mask[i], ones), ones);
      count += ones;
    }
    writer.Finish();
    uint8_t stream[kStreamRoom];
    const int64_t size = WriteStream(bits, count, stream) - stream;
    left_ -= size;
    if (left_ < 0) return false;
    std::memcpy(out_, stream, size);
    out_ += size;
    return true;
  }

  // Reads the bits under a mask, which may be the plane itself.
  bool Take(const uint64_t* mask, uint64_t* plane) {
    const int64_t n = words_;  // it stays in a register
    Plane bits;
    if (!ReadStream(Ones(mask, words_), unread_, bits)) return false;
    int64_t bit = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t* const word = bits + bit / 64;
      const uint64_t some = word[0] >> bit % 64 | word[1] << 1
                                                          << (63 - bit % 64);
      const int ones = PopCount(mask[i]);
      bit += ones;
      plane[i] = DepositMany(some, mask[i], ones);
    }
    return true;
  }

  const int largest_;
  const int bits_;  // of a magnitude
  const int64_t rows_;
  const int64_t words_;
  bool leaves_out_ = false;  // zeros
  int64_t limit_ = 0;        // of values
  int top_ = 0;              // bits of values
  int low_ = 0;              // of them, how many are all sent as they are
  uint8_t* out_ = nullptr;
  int64_t left_ = 0;  // bytes that may be written
  Unread* unread_ = nullptr;
  Plane planes_[kMaxBits];  // magnitudes, or values
  Plane larger_[kMaxBits];
  Plane negative_;
  Plane nonzero_;
  Plane at_;  // integers that have a value
};

// Writes integers, block by block; returns the bytes, or -1 if they are more
// than `most`.
static int64_t PackBlocks(const uint32_t* words, int largest, int64_t rows,
                          uint8_t* out, int64_t most) {
  int64_t size = 0;
  for (int64_t g = 0; g < rows; g += kBlockRows) {
    Block block(largest, rows - g < kBlockRows ? rows - g : kBlockRows);
    const int64_t added =
        block.Pack(words + g * PlaneCount(largest), out + size, most - size);
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

#endif  // TERNGRAD_CC_LIB_BLOCK_CODE_IMPL_H_
