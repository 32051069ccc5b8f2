// The kernels that decode sums of codes.
//
// Everything is static or a template of the lanes: see kernels_impl.h.

#ifndef TERNGRAD_CC_LIB_DECODE_IMPL_H_
#define TERNGRAD_CC_LIB_DECODE_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/ranges_impl.h"

namespace terngrad {

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

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_DECODE_IMPL_H_
