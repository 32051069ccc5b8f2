// The kernels, written once for 16 lanes. A file for each instruction set
// defines the lanes (simd_*.h) and instantiates the table at the end.
//
// Everything is static or a template of the lanes: the linker must not replace
// code by a copy that was compiled for another instruction set.

#ifndef TERNGRAD_CC_LIB_KERNELS_IMPL_H_
#define TERNGRAD_CC_LIB_KERNELS_IMPL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/prefix_code_impl.h"

namespace terngrad {

inline constexpr int kLanes = 16;
inline constexpr int64_t kAhead = 1024;  // values; from 512 on measured alike

static inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Calls visit(item, begin, end, offset) for the part [begin, end) of each item
// that lies in elements [first, last) of the bucket that concatenates the
// items; `offset` is the part's place in the bucket.
template <class Item, class Visit>
static inline void VisitItems(const Item* items, int64_t count, int64_t first,
                              int64_t last, Visit visit) {
  int64_t offset = 0;
  for (int64_t i = 0; i < count && offset < last; ++i) {
    const int64_t begin = Larger(first - offset, 0);
    const int64_t end = Smaller(last - offset, items[i].size);
    if (begin < end) visit(items[i], begin, end, offset + begin);
    offset += items[i].size;
  }
}

// Calls visit(part, begin, end) for the runs of values of one part in values
// [first, last) of a variable whose parts are not periodic.
template <class Visit>
static inline void VisitRuns(const Parts& parts, int64_t first, int64_t last,
                             Visit visit) {
  if (parts.count == 1) return visit(int64_t{0}, first, last);
  for (int64_t i = first; i < last;) {
    const int64_t run = (parts.first + i) / parts.block;
    const int64_t end = Smaller((run + 1) * parts.block - parts.first, last);
    visit(run % parts.count, i, end);
    i = end;
  }
}

// Numbers of a variable's parts, as vectors for 16 values after another: the
// same one, or those of periodic parts.
template <class Lanes>
class OneNumber {
 public:
  explicit OneNumber(float number) : lanes_(Lanes::Broadcast(number)) {}
  typename Lanes::Floats Next() { return lanes_; }

 private:
  typename Lanes::Floats lanes_;
};

// Returns the place of a value's number; `value` may be negative.
static inline int64_t PeriodicPart(const Parts& parts, int64_t value) {
  const int64_t part = (parts.first + value) % parts.count;
  return part < 0 ? part + parts.count : part;
}

template <class Lanes>
class PeriodicNumbers {
 public:
  // From value `first` of the variable on.
  PeriodicNumbers(const Parts& parts, const float* numbers, int64_t first)
      : numbers_(numbers),
        count_(parts.count),
        step_(kLanes % parts.count),
        part_(PeriodicPart(parts, first)) {}

  typename Lanes::Floats Next() {
    const auto numbers = Lanes::Load(numbers_ + part_);
    part_ += step_;
    if (part_ >= count_) part_ -= count_;
    return numbers;
  }

 private:
  const float* numbers_;
  int64_t count_, step_, part_;
};

// Asks for values that come soon: the processor's own prefetching stops at each
// page and does not keep up. The address need not exist.
static inline void Prefetch(const float* values, int count,
                            int64_t ahead = kAhead) {
  const uintptr_t first =
      reinterpret_cast<uintptr_t>(values) + ahead * sizeof(float);
  for (int i = 0; i < count; i += kLanes) {
    __builtin_prefetch(
        reinterpret_cast<const void*>(first + i * sizeof(float)));
  }
}

// ---- Statistics ------------------------------------------------------------

// Sums 64 interleaved sequences: vectors of any width give the same bits.
template <class Lanes>
struct StatsKernel {
  using Floats = typename Lanes::Floats;
  using Words = typename Lanes::Words;
  static constexpr int kRows = 4;  // independent sums hide the add's latency

  static BlockStats Run(const float* values, int64_t count) {
    Floats sum[kRows], squares[kRows];
    Words largest[kRows];
    for (int r = 0; r < kRows; ++r) {
      sum[r] = squares[r] = Lanes::Broadcast(0.0f);
      largest[r] = Lanes::Zeros();
    }
    const auto add = [&](const float* row_values) {
      Prefetch(row_values, kRows * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Floats x = Lanes::Load(row_values + r * kLanes);
        sum[r] = Lanes::Add(sum[r], x);
        squares[r] = Lanes::Add(squares[r], Lanes::Multiply(x, x));
        largest[r] = Lanes::Max(largest[r], Lanes::MagnitudeBits(x));
      }
    };
    int64_t i = 0;
    for (; i + kRows * kLanes <= count; i += kRows * kLanes) add(values + i);
    if (i < count) {
      float rest[kRows * kLanes] = {};
      std::memcpy(rest, values + i, (count - i) * sizeof(float));
      add(rest);
    }
    return {Total(sum), Total(squares), Largest(largest)};
  }

 private:
  static double Total(const Floats (&rows)[kRows]) {
    float lanes[kRows * kLanes];
    for (int r = 0; r < kRows; ++r) Lanes::Store(lanes + r * kLanes, rows[r]);
    double total = 0.0;
    for (float lane : lanes) total += lane;
    return total;
  }

  static uint32_t Largest(const Words (&rows)[kRows]) {
    uint32_t lanes[kRows * kLanes];
    for (int r = 0; r < kRows; ++r) {
      Lanes::StoreWords(lanes + r * kLanes, rows[r]);
    }
    uint32_t largest = 0;
    for (uint32_t lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
  }
};

// Reads each value once. The columns' sums stay in the first cache.
template <class Lanes>
struct ColumnStatsKernel {
  using Floats = typename Lanes::Floats;
  using Words = typename Lanes::Words;
  static constexpr int kRows = 8;  // values that are added before a sum is kept

  static void Run(const float* values, int64_t count, int64_t columns,
                  float* sums, float* squares, uint32_t* max_bits) {
    std::memset(sums, 0, columns * sizeof(float));
    std::memset(squares, 0, columns * sizeof(float));
    std::memset(max_bits, 0, columns * sizeof(uint32_t));
    const int64_t row = columns;
    for (; count >= kRows * row; count -= kRows * row, values += kRows * row) {
      Add<kRows>(values, columns, columns, sums, squares, max_bits);
    }
    for (; count > 0; count -= row, values += row) {
      Add<1>(values, columns, Smaller(count, columns), sums, squares, max_bits);
    }
  }

 private:
  // Returns how far ahead to ask for values: to the rows that are added next,
  // or if rows are long only in the same ones.
  static int64_t Ahead(int64_t columns) {
    const int64_t group = kRows * columns;
    return group > 16 * kAhead ? kAhead : (kAhead + group - 1) / group * group;
  }

  // Adds the first `used` columns of ROWS rows.
  template <int ROWS>
  static void Add(const float* values, int64_t columns, int64_t used,
                  float* sums, float* squares, uint32_t* max_bits) {
    const int64_t ahead = Ahead(columns);
    int64_t c = 0;
    for (; c + kLanes <= used; c += kLanes) {
      Floats sum = Lanes::Load(sums + c), square = Lanes::Load(squares + c);
      Words largest = Lanes::LoadWords(max_bits + c);
      for (int r = 0; r < ROWS; ++r) {
        const float* const place = values + r * columns + c;
        Prefetch(place, kLanes, ahead);
        AddOne(Lanes::Load(place), &sum, &square, &largest);
      }
      Lanes::Store(sums + c, sum);
      Lanes::Store(squares + c, square);
      Lanes::StoreWords(max_bits + c, largest);
    }
    if (c == used) return;
    const int64_t size = (used - c) * sizeof(float);
    float rest[3][kLanes] = {};
    uint32_t bits[kLanes] = {};
    std::memcpy(rest[0], sums + c, size);
    std::memcpy(rest[1], squares + c, size);
    std::memcpy(bits, max_bits + c, size);
    Floats sum = Lanes::Load(rest[0]), square = Lanes::Load(rest[1]);
    Words largest = Lanes::LoadWords(bits);
    for (int r = 0; r < ROWS; ++r) {
      std::memcpy(rest[2], values + r * columns + c, size);
      AddOne(Lanes::Load(rest[2]), &sum, &square, &largest);
    }
    Lanes::Store(rest[0], sum);
    Lanes::Store(rest[1], square);
    Lanes::StoreWords(bits, largest);
    std::memcpy(sums + c, rest[0], size);
    std::memcpy(squares + c, rest[1], size);
    std::memcpy(max_bits + c, bits, size);
  }

  static void AddOne(Floats x, Floats* sum, Floats* square, Words* largest) {
    *sum = Lanes::Add(*sum, x);
    *square = Lanes::Add(*square, Lanes::Multiply(x, x));
    *largest = Lanes::Max(*largest, Lanes::MagnitudeBits(x));
  }
};

// ---- Memory ----------------------------------------------------------------

template <class Lanes>
void Add(const float* a, const float* b, int64_t count, float* sums) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Prefetch(a + i, kLanes);
    Prefetch(b + i, kLanes);
    Lanes::Store(sums + i, Lanes::Add(Lanes::Load(a + i), Lanes::Load(b + i)));
  }
  for (; i < count; ++i) sums[i] = a[i] + b[i];
}

// ---- Encoding --------------------------------------------------------------

// Appends codes to a bucket, starting at the beginning of a word.
template <class Lanes, int PLANES>
class CodeWriter {
 public:
  explicit CodeWriter(uint32_t* words) : words_(words) {}

  // Appends the lowest `count` <= 32 bits of each plane; higher bits must be 0.
  void Put(const uint32_t (&bits)[PLANES], int count) {
    if (filled_ == 0 && count == kWordBits) {
      for (const uint32_t plane : bits) *words_++ = plane;
      return;
    }
    for (int j = 0; j < PLANES; ++j)
      waiting_[j] |= uint64_t{bits[j]} << filled_;
    filled_ += count;
    if (filled_ >= kWordBits) {
      Flush();
      for (uint64_t& plane : waiting_) plane >>= kWordBits;
      filled_ -= kWordBits;
    }
  }

  // Pads the current word with zeros, then writes zeros up to `end`.
  void Finish(uint32_t* end) {
    if (filled_ > 0) Flush();
    while (words_ < end) *words_++ = 0;
  }

 private:
  void Flush() {
    for (const uint64_t plane : waiting_) {
      *words_++ = static_cast<uint32_t>(plane);
    }
  }

  uint32_t* words_;
  uint64_t waiting_[PLANES] = {};
  int filled_ = 0;
};

// Sixteen consecutive Philox blocks of one stream, one per lane. Lanes::kParts
// vectors hold them.
template <class Lanes>
class PhiloxLanes {
 public:
  using Wide = typename Lanes::Wide;
  using Words = Wide[Lanes::kParts];

  explicit PhiloxLanes(const DrawKey& key)
      : key_(key),
        k0_(static_cast<uint32_t>(key.seed)),
        k1_(static_cast<uint32_t>(key.seed >> 32)) {
    for (int round = 2; round < kPhiloxRounds; round += 2) {
      wide0_[round / 2] = uint64_t{Key0(round)} << 32 | Key0(round + 1);
      wide1_[round / 2] = uint64_t{Key1(round)} << 32 | Key1(round + 1);
    }
  }

  // Computes the four words of blocks [block, block + 16); block is a multiple
  // of 16.
  __attribute__((always_inline)) void Draw(uint64_t block,
                                           Words (&words)[4]) const {
    // Only the block's low word differs between the lanes, so half of the
    // first two rounds is the same for all of them.
    const uint32_t c1 = static_cast<uint32_t>(block >> 32);
    const uint64_t same = uint64_t{kPhiloxMultiplier1} * key_.step;
    const uint32_t n0 = static_cast<uint32_t>(same >> 32) ^ c1 ^ k0_;
    const uint64_t same2 = uint64_t{kPhiloxMultiplier0} * n0;
    const Wide n2_key = Lanes::Repeat(key_.stream ^ k1_);
    const Wide w0_key = Lanes::Repeat(static_cast<uint32_t>(same) ^ Key0(1));
    const Wide w2_key = Lanes::Repeat(same2 >> 32 ^ Key1(1));
    for (int part = 0; part < Lanes::kParts; ++part) {
      const Wide product = Lanes::MultiplyWide(
          Lanes::Consecutive(static_cast<uint32_t>(block), part),
          kPhiloxMultiplier0);
      const Wide product2 = Lanes::MultiplyWide(Lanes::HighXor(product, n2_key),
                                                kPhiloxMultiplier1);
      Wide w0 = Lanes::HighXor(product2, w0_key);
      Wide w1 = product2;  // a Wide's upper halves are ignored
      Wide w2 = Lanes::Xor(product, w2_key);
      Wide w3 = Lanes::Repeat(same2);
      // A product's upper half is used in its round, its lower half in the
      // next one: a wide key serves two rounds.
      for (int round = 2; round < kPhiloxRounds; round += 2) {
        const Wide p0 = Lanes::Xor(Lanes::MultiplyWide(w0, kPhiloxMultiplier0),
                                   Lanes::Repeat(wide1_[round / 2]));
        const Wide p1 = Lanes::Xor(Lanes::MultiplyWide(w2, kPhiloxMultiplier1),
                                   Lanes::Repeat(wide0_[round / 2]));
        w0 = Lanes::HighXor(p1, w1);
        w2 = Lanes::HighXor(p0, w3);
        w3 = Lanes::MultiplyWide(w0, kPhiloxMultiplier0);
        w1 = Lanes::MultiplyWide(w2, kPhiloxMultiplier1);
        w0 = Lanes::HighXor(w1, p1);
        w2 = Lanes::HighXor(w3, p0);
      }
      words[0][part] = w0;
      words[1][part] = w1;
      words[2][part] = w2;
      words[3][part] = w3;
    }
  }

  const DrawKey& key() const { return key_; }

 private:
  uint32_t Key0(uint32_t round) const { return k0_ + round * kPhiloxKeyStep0; }
  uint32_t Key1(uint32_t round) const { return k1_ + round * kPhiloxKeyStep1; }

  DrawKey key_;
  uint32_t k0_, k1_;
  uint64_t wide0_[kPhiloxRounds / 2], wide1_[kPhiloxRounds / 2];
};

// t / 256 of values after another (see SourceEncoder), at most that of the
// largest code; NaN where a value is.
template <class Lanes, int MAX_CODE>
class OneThreshold {
 public:
  using Floats = typename Lanes::Floats;

  // `rate` is not 0.
  OneThreshold(float bound, float rate)
      : bound_(Bound(bound, rate)), rate_(rate) {}

  Floats Next(Floats x) {
    const Floats clipped =
        Lanes::Min(Lanes::Broadcast(bound_), Lanes::Magnitude(x));
    const Floats threshold = Lanes::Multiply(clipped, Lanes::Broadcast(rate_));
    return MAX_CODE == 1
               ? threshold
               : Lanes::Min(Lanes::Broadcast(MAX_CODE * 0x1p16f), threshold);
  }

 private:
  // With ternary codes values above the scale, to its last bits, are as good as
  // the scale.
  static float Bound(float bound, float rate) {
    if (MAX_CODE > 1) return bound;
    const float scale = 0x1p16f / rate;
    const float finite = scale < HUGE_VALF ? scale : 0x1.fffffep127f;
    return bound < finite ? bound : finite;
  }

  float bound_, rate_;
};

template <class Lanes, int MAX_CODE>
class PeriodicThresholds {
 public:
  using Floats = typename Lanes::Floats;

  // Of the source's values from `first` on.
  PeriodicThresholds(const Source& source, int64_t first)
      : bounds_(source.parts, source.bounds, first),
        rates_(source.parts, source.rates, first) {}

  Floats Next(Floats x) {
    const Floats clipped = Lanes::Min(bounds_.Next(), Lanes::Magnitude(x));
    return Lanes::Min(Lanes::Broadcast(MAX_CODE * 0x1p16f),
                      Lanes::Multiply(clipped, rates_.Next()));
  }

 private:
  PeriodicNumbers<Lanes> bounds_, rates_;
};

// A value x is worth t = min(|x|, bound) * (2^24 / unit) draws, where
// unit = scale / MAX_CODE. Its code is t / 2^24 rounded down, and one more if
// r < t % 2^24, r being its draw of 24 bits. The upper 16 bits of the draw,
// compared with those of t % 2^24, decide. Only if they are the same, once in
// 2^16 values, are the lower bits drawn.
template <class Lanes, int MAX_CODE, bool ANTITHETIC>
class SourceEncoder {
 public:
  static constexpr int kPlanes = PlaneCount(MAX_CODE);
  static_assert(kPlanes <= 8, "Lanes::PutPlanes has no more");

  SourceEncoder(const Source& source, const NodeKey& key)
      : source_(source),
        is_odd_(key.node & 1),
        philox_({key.seed, key.step,
                 key.node >> int{ANTITHETIC} << 16 | source.variable}) {}

  // Appends the codes of values [begin, end).
  void Run(int64_t begin, int64_t end,
           CodeWriter<Lanes, kPlanes>* writer) const {
    if (IsPeriodic(source_.parts)) {
      const int64_t skipped = (source_.first + begin) % kDrawGroup;
      PeriodicThresholds<Lanes, MAX_CODE> thresholds(source_, begin - skipped);
      return RunPart(begin, end, true, &thresholds, writer);
    }
    VisitRuns(source_.parts, begin, end,
              [&](int64_t part, int64_t first, int64_t last) {
                const float rate = source_.rates[part];
                OneThreshold<Lanes, MAX_CODE> thresholds(source_.bounds[part],
                                                         rate);
                RunPart(first, last, rate > 0.0f, &thresholds, writer);
              });
  }

 private:
  using Floats = typename Lanes::Floats;
  using Halves = typename Lanes::Halves;

  static constexpr int kGroupWords = kDrawGroup / kWordBits;

  struct Codes {
    uint32_t planes[kGroupWords][kPlanes];
  };

  // `thresholds` begin with the group of draws that value `begin` is in.
  template <class Thresholds>
  void RunPart(int64_t begin, int64_t end, bool is_usable,
               Thresholds* thresholds,
               CodeWriter<Lanes, kPlanes>* writer) const {
    for (int64_t i = begin; i < end;) {
      const uint64_t element = source_.first + i;
      const int skipped = element % kDrawGroup;
      const int count =
          static_cast<int>(Smaller(kDrawGroup - skipped, end - i));
      Codes codes = {};
      if (is_usable) EncodeSome(i, element, count, thresholds, &codes);
      Put(codes, skipped, count, writer);
      i += count;
    }
  }

  // Encodes `count` values from the i-th on, `element` of the variable, all in
  // one group of draws. Not inlined: the loop around it would hold registers.
  template <class Thresholds>
  __attribute__((noinline)) void EncodeSome(int64_t i, uint64_t element,
                                            int count, Thresholds* thresholds,
                                            Codes* codes) const {
    const float* values = source_.values + i;
    float padded[kDrawGroup];
    if (count < kDrawGroup) {
      std::memset(padded, 0, sizeof(padded));
      std::memcpy(padded + element % kDrawGroup, values, count * sizeof(float));
      values = padded;
    }
    typename PhiloxLanes<Lanes>::Words draws[kGroupWords];
    philox_.Draw(element / kDrawGroup * kDrawBlocks, draws);
    Prefetch(values, kDrawGroup);
    uint32_t open[kGroupWords];
    uint32_t any_open = 0;
    Thresholds next = *thresholds;
    for (int w = 0; w < kGroupWords; ++w) {
      const Floats low = Lanes::Load(values + w * kWordBits);
      const Floats high = Lanes::Load(values + w * kWordBits + kLanes);
      Halves h = Lanes::ToHalves(draws[w]);
      if (ANTITHETIC) h = Lanes::Complement(h, low, high, is_odd_);
      open[w] = EncodeWord(low, high, h, &next, codes->planes[w]);
      any_open |= open[w];
    }
    *thresholds = next;
    if (any_open) {
      Settle(values, i - static_cast<int64_t>(element % kDrawGroup), open,
             codes);
    }
    if (MAX_CODE == 1) {
      for (auto& planes : codes->planes) planes[1] &= planes[0];
    }
  }

  // Encodes 32 values and returns which of them the lower bits decide. Values
  // of code 0 may be negative in ternary codes.
  template <class Thresholds>
  static uint32_t EncodeWord(Floats low, Floats high, Halves draws,
                             Thresholds* thresholds,
                             uint32_t (&planes)[kPlanes]) {
    const Floats low_threshold = thresholds->Next(low);
    const Floats high_threshold = thresholds->Next(high);
    if constexpr (MAX_CODE == 1) {
      const Halves t = Lanes::RoundDown(low_threshold, high_threshold);
      planes[0] = Lanes::Greater(t, draws);
      planes[1] = Lanes::SignBits(low, high);
      return Lanes::Equal(t, draws);
    } else {
      Halves whole, rest;
      Lanes::Split(low_threshold, high_threshold, &whole, &rest);
      const Halves codes = Lanes::AddWhereGreater(whole, rest, draws);
      Lanes::PutPlanes(Lanes::NegateWhereNegative(codes, low, high), planes);
      return Lanes::Equal(rest, draws);
    }
  }

  // Decides the undecided values with all 24 bits of their draws. The group of
  // draws begins with the source's value `first`, which may lie before it.
  __attribute__((noinline, cold)) void Settle(const float* values,
                                              int64_t first,
                                              const uint32_t* open,
                                              Codes* codes) const {
    for (int w = 0; w < kGroupWords; ++w) {
      for (uint32_t bits = open[w]; bits; bits &= bits - 1) {
        const int bit = __builtin_ctz(bits);
        const int e = w * kWordBits + bit;
        const uint32_t code = CodeOf(values[e], first + e);
        for (int j = 0; j < kPlanes; ++j) {
          uint32_t& plane = codes->planes[w][j];
          plane &= ~(uint32_t{1} << bit);
          plane |= (code >> j & 1) << bit;
        }
      }
    }
  }

  // Denormal values and thresholds count as zero even if this thread does not
  // flush them.
  int CodeOf(float value, int64_t i) const {
    const float size = __builtin_fabsf(value);  // std::fabs may be shared code
    if (!(size >= kSmallestNormal)) return 0;   // also where there is no value
    const Parts& parts = source_.parts;
    const int64_t part = (parts.first + i) / parts.block % parts.count;
    const float bound = source_.bounds[part], rate = source_.rates[part];
    const float magnitude = size > bound ? bound : size;
    if (!(magnitude >= kSmallestNormal && rate > 0.0f)) return 0;
    constexpr float kLargest = MAX_CODE * 0x1p24f;
    const float product = magnitude * (rate * 0x1p8f);
    const float threshold = product > kLargest ? kLargest : product;
    const int whole = static_cast<int>(threshold * 0x1p-24f);
    const float rest = threshold - whole * 0x1p24f;
    uint32_t draw = Draw(philox_.key(), source_.first + i);
    if (ANTITHETIC && is_odd_ != (value < 0.0f)) draw ^= kLargestDraw;
    const int code =
        whole + (rest > static_cast<float>(draw) && rest > kSmallestNormal);
    return value < 0.0f ? -code : code;
  }

  static void Put(const Codes& codes, int skipped, int count,
                  CodeWriter<Lanes, kPlanes>* writer) {
    if (count == kDrawGroup) {
      for (const auto& planes : codes.planes) writer->Put(planes, kWordBits);
      return;
    }
    for (int e = skipped; e < skipped + count;) {
      const int bit = e % kWordBits;
      const int taken =
          static_cast<int>(Smaller(kWordBits - bit, skipped + count - e));
      const uint32_t mask = ~uint32_t{0} >> (kWordBits - taken);
      uint32_t bits[kPlanes];
      for (int j = 0; j < kPlanes; ++j) {
        bits[j] = codes.planes[e / kWordBits][j] >> bit & mask;
      }
      writer->Put(bits, taken);
      e += taken;
    }
  }

  const Source& source_;
  bool is_odd_;
  PhiloxLanes<Lanes> philox_;
};

template <class Lanes, int MAX_CODE, bool ANTITHETIC>
void EncodeSources(const Source* sources, int64_t source_count,
                   const NodeKey& key, int64_t begin, int64_t end,
                   uint32_t* words) {
  using Encoder = SourceEncoder<Lanes, MAX_CODE, ANTITHETIC>;
  CodeWriter<Lanes, Encoder::kPlanes> writer(words + Encoder::kPlanes * begin);
  VisitItems(sources, source_count, begin * kWordBits, end * kWordBits,
             [&](const Source& source, int64_t first, int64_t last, int64_t) {
               Encoder(source, key).Run(first, last, &writer);
             });
  writer.Finish(words + Encoder::kPlanes * end);
}

template <class Lanes, int MAX_CODE>
void Encode(const Source* sources, int64_t source_count, const NodeKey& key,
            int64_t begin, int64_t end, uint32_t* words) {
  const auto run = key.antithetic ? EncodeSources<Lanes, MAX_CODE, true>
                                  : EncodeSources<Lanes, MAX_CODE, false>;
  run(sources, source_count, key, begin, end, words);
}

// Rounds values to the nearest level: the magnitude of a code is the number of
// k from 1 to MAX_CODE with |x| * 2^16 / unit > (k - 1/2) 2^16.
template <class Lanes, int MAX_CODE>
class NearestEncoder {
 public:
  static constexpr int kPlanes = PlaneCount(MAX_CODE);
  static_assert(MAX_CODE <= 2, "PutPlanes knows no larger codes");

  using Writer = CodeWriter<Lanes, kPlanes>;

  // Appends the codes of values [begin, end).
  static void Run(const Source& source, int64_t begin, int64_t end,
                  Writer* writer) {
    if (IsPeriodic(source.parts)) {
      PeriodicNumbers<Lanes> rates(source.parts, source.rates, begin);
      return RunPart(source.values + begin, end - begin, rates, writer);
    }
    VisitRuns(source.parts, begin, end,
              [&](int64_t part, int64_t first, int64_t last) {
                OneNumber<Lanes> rates(source.rates[part]);
                RunPart(source.values + first, last - first, rates, writer);
              });
  }

 private:
  template <class Numbers>
  static void RunPart(const float* values, int64_t count, Numbers rates,
                      Writer* writer) {
    uint32_t planes[kPlanes];
    for (; count >= kWordBits; values += kWordBits, count -= kWordBits) {
      Prefetch(values, kWordBits);
      PutPlanes(values, &rates, planes);
      writer->Put(planes, kWordBits);
    }
    if (count == 0) return;
    float rest[kWordBits] = {};
    std::memcpy(rest, values, count * sizeof(float));
    PutPlanes(rest, &rates, planes);
    writer->Put(planes, static_cast<int>(count));
  }

  // Encodes 32 values.
  template <class Numbers>
  static void PutPlanes(const float* values, Numbers* rates,
                        uint32_t (&planes)[kPlanes]) {
    const auto low = Lanes::Load(values);
    const auto high = Lanes::Load(values + kLanes);
    const auto a = Lanes::Multiply(Lanes::Magnitude(low), rates->Next());
    const auto b = Lanes::Multiply(Lanes::Magnitude(high), rates->Next());
    const uint32_t nonzero = Lanes::Exceeds(a, b, 0x1p15f);
    const uint32_t negative = nonzero & Lanes::SignBits(low, high);
    if constexpr (MAX_CODE == 1) {
      planes[0] = nonzero;
      planes[1] = negative;
    } else {
      const uint32_t is_two = Lanes::Exceeds(a, b, 3 * 0x1p15f);
      planes[0] = nonzero & ~is_two;
      planes[1] = is_two | negative;
      planes[2] = negative;
    }
  }
};

template <class Lanes, int MAX_CODE>
void EncodeNearest(const Source* sources, int64_t source_count, const NodeKey&,
                   int64_t begin, int64_t end, uint32_t* words) {
  using Encoder = NearestEncoder<Lanes, MAX_CODE>;
  typename Encoder::Writer writer(words + Encoder::kPlanes * begin);
  VisitItems(sources, source_count, begin * kWordBits, end * kWordBits,
             [&](const Source& source, int64_t first, int64_t last, int64_t) {
               Encoder::Run(source, first, last, &writer);
             });
  writer.Finish(words + Encoder::kPlanes * end);
}

// ---- Sums ------------------------------------------------------------------

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

// ---- Decoding --------------------------------------------------------------

template <class Lanes, int PLANES>
struct DecodeKernel {
  // Decodes elements [offset, offset + count) of the bucket, values `first` and
  // following of a variable, to `values`; past the caches if `streams`.
  static void Run(const Planes& sums, int64_t offset, int64_t count,
                  const Units& units, int64_t first, bool streams,
                  float* values) {
    if (IsPeriodic(units.parts)) {
      const auto from = [&](int64_t done) {
        return PeriodicNumbers<Lanes>(units.parts, units.values, first + done);
      };
      RunPart(sums, offset, count, from, streams, values);
    } else {
      VisitRuns(units.parts, first, first + count,
                [&](int64_t part, int64_t begin, int64_t end) {
                  const auto from = [&](int64_t) {
                    return OneNumber<Lanes>(units.values[part]);
                  };
                  RunPart(sums, offset + begin - first, end - begin, from,
                          streams, values + begin - first);
                });
    }
    if (streams) Lanes::FinishStreams();
  }

 private:
  using Floats = typename Lanes::Floats;

  // units_from(i): the units of values i and following.
  template <class UnitsFrom>
  static void RunPart(const Planes& sums, int64_t offset, int64_t count,
                      const UnitsFrom& units_from, bool streams,
                      float* values) {
    if (!streams) {
      return DecodeSome<false>(sums, offset, count, units_from(0), values);
    }
    // Only whole vectors at multiples of their size can be streamed.
    const int64_t misplaced = reinterpret_cast<uintptr_t>(values) / 4 % kLanes;
    const int64_t head = Smaller(misplaced ? kLanes - misplaced : 0, count);
    DecodeSome<false>(sums, offset, head, units_from(0), values);
    DecodeSome<true>(sums, offset + head, count - head, units_from(head),
                     values + head);
  }

  template <bool STREAMS, class Numbers>
  static void DecodeSome(const Planes& sums, int64_t offset, int64_t count,
                         Numbers units, float* values) {
    const int k = PLANES ? PLANES : sums.planes;
    const int shift = offset % kWordBits;
    const uint32_t* words = sums.words + offset / kWordBits * k;
    for (; count > 0; words += k, values += kWordBits, count -= kWordBits) {
      uint32_t bits[kMaxPlanes];
      const bool spans = shift && count > kWordBits - shift;
      for (int j = 0; j < k; ++j) {
        bits[j] = words[j] >> shift;
        if (spans) bits[j] |= words[k + j] << (kWordBits - shift);
      }
      if (count >= kWordBits) {
        DecodeWord<STREAMS>(bits, k, units, values);
      } else {
        float rest[kWordBits];
        DecodeWord<false>(bits, k, units, rest);
        std::memcpy(values, rest, count * sizeof(float));
      }
    }
  }

  template <bool STREAMS, class Numbers>
  static void DecodeWord(const uint32_t* bits, int k, Numbers& units,
                         float* values) {
    for (int half = 0; half < 2; ++half) {
      auto sum = Lanes::Zeros();
      for (int j = 0; j < k; ++j) {
        const uint32_t power = uint32_t{1} << j;
        const uint32_t weight = j == k - 1 ? 0u - power : power;
        sum = Lanes::OrWhere(sum, bits[j] >> (half * kLanes), weight);
      }
      const Floats x = Lanes::Multiply(units.Next(), Lanes::ToFloats(sum));
      if (STREAMS) {
        Lanes::Stream(values + half * kLanes, x);
      } else {
        Lanes::Store(values + half * kLanes, x);
      }
    }
  }
};

template <class Lanes>
static inline auto DecoderOf(int planes) {
  switch (planes) {
    case 2:
      return DecodeKernel<Lanes, 2>::Run;
    case 3:
      return DecodeKernel<Lanes, 3>::Run;
    case 4:
      return DecodeKernel<Lanes, 4>::Run;
    default:
      return DecodeKernel<Lanes, 0>::Run;
  }
}

template <class Lanes>
void Decode(const Planes& sums, const Target* targets, int64_t target_count,
            int64_t begin, int64_t end) {
  const auto run = DecoderOf<Lanes>(sums.planes);
  VisitItems(
      targets, target_count, begin * kWordBits, end * kWordBits,
      [&](const Target& target, int64_t first, int64_t last, int64_t offset) {
        run(sums, offset, last - first, target.units, first,
            target.size >= kStreamedSize, target.values + first);
      });
}

// Values that are decoded before their use; a multiple of kWordBits.
inline constexpr int kPart = 1024;

template <class Lanes>
void SubtractSome(const float* a, const float* b, int64_t count,
                  float* differences) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Prefetch(a + i, kLanes);
    Lanes::Store(differences + i,
                 Lanes::Subtract(Lanes::Load(a + i), Lanes::Load(b + i)));
  }
  for (; i < count; ++i) differences[i] = a[i] - b[i];
}

template <class Lanes>
void Subtract(const Planes& codes, const Kept* variables,
              int64_t variable_count, int64_t begin, int64_t end) {
  const auto decode = DecoderOf<Lanes>(codes.planes);
  VisitItems(
      variables, variable_count, begin * kWordBits, end * kWordBits,
      [&](const Kept& variable, int64_t first, int64_t last, int64_t offset) {
        for (int64_t i = first; i < last; i += kPart) {
          const int64_t count = Smaller(kPart, last - i);
          float sent[kPart];
          decode(codes, offset + i - first, count, variable.units, i, false,
                 sent);
          SubtractSome<Lanes>(variable.values + i, sent, count,
                              variable.residuals + i);
        }
      });
}

// ---- Updates ---------------------------------------------------------------

// Means are decoded in small parts, which the cache holds until they are used:
// an update reads and writes only weights and slots in memory.
template <class Lanes>
class UpdateKernel {
 public:
  static void Run(const Planes& sums, const Trained* variables,
                  int64_t variable_count, const Update& update, int64_t begin,
                  int64_t end) {
    const auto decode = DecoderOf<Lanes>(sums.planes);
    const auto apply = ApplierOf(update.rule);
    VisitItems(variables, variable_count, begin * kWordBits, end * kWordBits,
               [&](const Trained& variable, int64_t first, int64_t last,
                   int64_t offset) {
                 for (int64_t i = first; i < last; i += kPart) {
                   const int64_t count = Smaller(kPart, last - i);
                   float means[kPart];
                   decode(sums, offset + i - first, count, variable.units, i,
                          false, means);
                   apply(update, means, variable, i, count);
                   if (variable.averages) {
                     Average(update.gain, variable, i, count);
                   }
                 }
               });
  }

 private:
  using Floats = typename Lanes::Floats;

  static auto ApplierOf(Rule rule) {
    switch (rule) {
      case Rule::kKerasMomentum:
        return Apply<Rule::kKerasMomentum>;
      case Rule::kNesterov:
        return Apply<Rule::kNesterov>;
      case Rule::kAdam:
        return Apply<Rule::kAdam>;
      case Rule::kRmsProp:
        return Apply<Rule::kRmsProp>;
      default:
        return Apply<Rule::kMomentum>;
    }
  }

  // `update` is a copy, which stores to the arrays cannot change.
  template <Rule RULE>
  static void Apply(const Update update, const float* means,
                    const Trained& variable, int64_t first, int64_t count) {
    constexpr int kArrays = 1 + SlotCount(RULE);
    float* const arrays[] = {variable.weights, variable.slots[0],
                             variable.slots[1]};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Floats x[kArrays];
      for (int j = 0; j < kArrays; ++j) {
        Prefetch(arrays[j] + first + i, kLanes);
        x[j] = Lanes::Load(arrays[j] + first + i);
      }
      Change<RULE>(update, Lanes::Load(means + i), x);
      for (int j = 0; j < kArrays; ++j) {
        Lanes::Store(arrays[j] + first + i, x[j]);
      }
    }
    if (i == count) return;
    const int64_t size = (count - i) * sizeof(float);
    float mean[kLanes] = {}, rest[kLanes] = {};
    Floats x[kArrays];
    std::memcpy(mean, means + i, size);
    for (int j = 0; j < kArrays; ++j) {
      std::memcpy(rest, arrays[j] + first + i, size);
      x[j] = Lanes::Load(rest);
    }
    Change<RULE>(update, Lanes::Load(mean), x);
    for (int j = 0; j < kArrays; ++j) {
      Lanes::Store(rest, x[j]);
      std::memcpy(arrays[j] + first + i, rest, size);
    }
  }

  // The weights are in the cache: they were just updated.
  static void Average(float gain, const Trained& variable, int64_t first,
                      int64_t count) {
    float* const averages = variable.averages + first;
    const float* const weights = variable.weights + first;
    const Floats divisor = Lanes::Broadcast(1.0f + gain);
    const auto blend = [&](Floats average, Floats weight) {
      return Lanes::Divide(Lanes::Add(average, Times(weight, gain)), divisor);
    };
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Prefetch(averages + i, kLanes);
      Lanes::Store(averages + i,
                   blend(Lanes::Load(averages + i), Lanes::Load(weights + i)));
    }
    if (i == count) return;
    const int64_t size = (count - i) * sizeof(float);
    float average[kLanes] = {}, weight[kLanes] = {};
    std::memcpy(average, averages + i, size);
    std::memcpy(weight, weights + i, size);
    Lanes::Store(average, blend(Lanes::Load(average), Lanes::Load(weight)));
    std::memcpy(averages + i, average, size);
  }

  // x: the weights, then their slots.
  template <Rule RULE>
  static void Change(const Update& update, Floats mean, Floats* x) {
    Floats& weight = x[0];
    if constexpr (RULE == Rule::kMomentum) {
      x[1] = Lanes::Add(Times(x[1], update.momentum), mean);
      weight = Lanes::Subtract(weight, Times(x[1], update.rate));
    } else if constexpr (RULE == Rule::kKerasMomentum) {
      x[1] = WithKerasMomentum(update, mean, x[1]);
      weight = Lanes::Add(weight, x[1]);
    } else if constexpr (RULE == Rule::kNesterov) {
      x[1] = WithKerasMomentum(update, mean, x[1]);
      weight = Lanes::Add(weight, WithKerasMomentum(update, mean, x[1]));
    } else if constexpr (RULE == Rule::kAdam) {
      x[1] = Toward(x[1], mean, update.mean_share);
      x[2] = Toward(x[2], Lanes::Multiply(mean, mean), update.square_share);
      const auto root = Lanes::SquareRoot(x[2]);
      const auto divisor = Lanes::Add(root, Lanes::Broadcast(update.epsilon));
      const auto change = Lanes::Divide(Times(x[1], update.rate), divisor);
      weight = Lanes::Subtract(weight, change);
    } else {
      x[1] = Toward(x[1], Lanes::Multiply(mean, mean), update.square_share);
      const auto square = Lanes::Add(x[1], Lanes::Broadcast(update.epsilon));
      const auto change =
          Lanes::Divide(Times(mean, update.rate), Lanes::SquareRoot(square));
      x[2] = Lanes::Add(Times(x[2], update.momentum), change);
      weight = Lanes::Subtract(weight, x[2]);
    }
  }

  static Floats Times(Floats x, float factor) {
    return Lanes::Multiply(x, Lanes::Broadcast(factor));
  }

  static Floats Toward(Floats x, Floats target, float share) {
    return Lanes::Add(x, Times(Lanes::Subtract(target, x), share));
  }

  static Floats WithKerasMomentum(const Update& update, Floats mean,
                                  Floats velocity) {
    return Lanes::Subtract(Times(velocity, update.momentum),
                           Times(mean, update.rate));
  }
};

// The tables for an instruction set.
template <class Lanes>
inline constexpr Encoder kEncodersOf[] = {
    {"ternary", 1, Encode<Lanes, 1>},
    {"5-level", 2, Encode<Lanes, 2>},
    {"7-level", 3, Encode<Lanes, 3>},
    {"15-level", 7, Encode<Lanes, 7>},
    {"255-level", 127, Encode<Lanes, 127>},
    {"ternary-feedback", 1, EncodeNearest<Lanes, 1>},
    {"5-level-feedback", 2, EncodeNearest<Lanes, 2>},
    {}};

template <class Lanes>
inline constexpr Kernels kKernelsOf = {
    Lanes::kPath,      StatsKernel<Lanes>::Run, ColumnStatsKernel<Lanes>::Run,
    Add<Lanes>,        kEncodersOf<Lanes>,      SumKernel<Lanes>::Run,
    Decode<Lanes>,     Subtract<Lanes>,         UpdateKernel<Lanes>::Run,
    PackPrefix<Lanes>, UnpackPrefix<Lanes>};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_KERNELS_IMPL_H_
