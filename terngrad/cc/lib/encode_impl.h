// Kernels that turn values into codes.
//
// Everything is static or a template of the lanes: see kernels_impl.h.

#ifndef TERNGRAD_CC_LIB_ENCODE_IMPL_H_
#define TERNGRAD_CC_LIB_ENCODE_IMPL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/code_rules.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/ranges_impl.h"

namespace terngrad {

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

 private:
  uint32_t Key0(uint32_t round) const { return k0_ + round * kPhiloxKeyStep0; }
  uint32_t Key1(uint32_t round) const { return k1_ + round * kPhiloxKeyStep1; }

  DrawKey key_;
  uint32_t k0_, k1_;
  uint64_t wide0_[kPhiloxRounds / 2], wide1_[kPhiloxRounds / 2];
};

// t / 256 of consecutive values (see SourceEncoder), at most that of the
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
      : source_(source), key_(key), philox_(DrawKeyOf(key, source.variable)) {}

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
      if (ANTITHETIC) h = Lanes::Complement(h, low, high, key_.node & 1);
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

  int CodeOf(float value, int64_t i) const {
    // Such codes are 0, and where there is no value there is no part.
    if (!(MagnitudeOf(value) >= kSmallestNormal)) return 0;
    const int64_t part = PartOf(source_.parts, i);
    return RandomCodeOf<MAX_CODE>(key_, source_.variable, source_.first + i,
                                  value, source_.bounds[part],
                                  source_.rates[part]);
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
  const NodeKey& key_;
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

// The encoders by name; see terngrad/ternary.py.
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

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_ENCODE_IMPL_H_
