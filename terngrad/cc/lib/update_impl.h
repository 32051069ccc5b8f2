// The kernel that updates variables with sums of codes.
//
// Everything is static or a template of the lanes: see kernels_impl.h.

#ifndef TERNGRAD_CC_LIB_UPDATE_IMPL_H_
#define TERNGRAD_CC_LIB_UPDATE_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/decode_impl.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/ranges_impl.h"
#include "terngrad/cc/lib/update_rules.h"

namespace terngrad {

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
  using Rules = UpdateRules<Lanes>;

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
      Rules::template Change<RULE>(update, Lanes::Load(means + i), x);
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
    Rules::template Change<RULE>(update, Lanes::Load(mean), x);
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
      return Rules::Blend(average, weight, gain, divisor);
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
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_UPDATE_IMPL_H_
