// Variables that are trained, for tests of the kernels.

#ifndef TERNGRAD_CC_LIB_TESTING_TRAINED_H_
#define TERNGRAD_CC_LIB_TESTING_TRAINED_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/parts.h"
#include "terngrad/cc/lib/testing/targets.h"

namespace terngrad {
namespace testing {

inline constexpr Update kUpdates[] = {
    {Rule::kMomentum, 0.03f, 0.9f, 0.0f, 0.0f, 0.0f, 9.0f},
    {Rule::kMomentum, 0.0f, 0.9f, 0.0f, 0.0f, 0.0f, 1e-4f},
    {Rule::kKerasMomentum, 0.03f, 0.9f, 0.0f, 0.0f, 0.0f, 0.3f},
    {Rule::kNesterov, 0.03f, 0.9f, 0.0f, 0.0f, 0.0f, 0.3f},
    {Rule::kAdam, 0.03f, 0.0f, 0.1f, 0.001f, 1e-7f, 0.3f},
    {Rule::kRmsProp, 0.03f, 0.9f, 0.0f, 0.1f, 1.0f, 0.3f}};

// Weights of these sizes, two slots of each, and averages of every second.
struct Variables {
  std::vector<Floats> weights, slots[2], averages;

  explicit Variables(const std::vector<int64_t>& sizes) {
    Random random(11);
    std::uniform_real_distribution<float> some(-2.0f, 2.0f);
    for (const int64_t size : sizes) {
      for (auto* floats : {&weights, &slots[0], &slots[1], &averages}) {
        floats->emplace_back(size);
        for (float& value : floats->back()) {
          value = random() % 8 ? some(random) : -0.0f;
        }
      }
    }
  }

  // Makes the slot positive that a rule takes the root of.
  void Prepare(const Update& update) {
    if (SlotCount(update.rule) == 1) return;
    for (Floats& slot : slots[update.rule == Rule::kAdam ? 1 : 0]) {
      for (float& value : slot) value = std::abs(value);
    }
  }

  void Run(const Kernels& kernels, const Words& words, int planes,
           const Update& update, int64_t begin, int64_t end) {
    std::vector<PartNumbers> units;
    for (size_t i = 0; i < weights.size(); ++i) units.push_back(UnitsOf(i));
    std::vector<Trained> all;
    for (size_t i = 0; i < weights.size(); ++i) {
      float* const second =
          SlotCount(update.rule) == 2 ? slots[1][i].data() : nullptr;
      all.push_back({weights[i].data(),
                     {slots[0][i].data(), second},
                     i % 2 ? averages[i].data() : nullptr,
                     static_cast<int64_t>(weights[i].size()),
                     {units[i].parts, units[i].values.data()}});
    }
    kernels.update({words.data(), planes}, all.data(), all.size(), update,
                   begin, end);
  }

  void RunNaively(const Words& words, int planes, const Update& update,
                  int64_t begin, int64_t end) {
    const Integers sums = IntegersOf(words, planes);
    int64_t e = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const PartNumbers units = UnitsOf(i);
      for (size_t j = 0; j < weights[i].size(); ++j, ++e) {
        if (e < kWordBits * begin || e >= kWordBits * end) continue;
        Change(update, units.Of(j) * static_cast<float>(sums[e]), weights[i][j],
               slots[0][i][j], slots[1][i][j]);
        float& average = averages[i][j];
        const float gain = update.gain;
        if (i % 2) average = (average + gain * weights[i][j]) / (1 + gain);
      }
    }
  }

  void CheckEquals(const Variables& other) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      CHECK_SAME(weights[i], other.weights[i]);
      CHECK_SAME(slots[0][i], other.slots[0][i]);
      CHECK_SAME(slots[1][i], other.slots[1][i]);
      CHECK_SAME(averages[i], other.averages[i]);
    }
  }

 private:
  static void Change(const Update& update, float g, float& w, float& first,
                     float& second) {
    const auto [rule, rate, momentum, mean_share, square_share, epsilon, gain] =
        update;
    switch (rule) {
      case Rule::kMomentum:
        first = momentum * first + g;
        w = w - rate * first;
        break;
      case Rule::kKerasMomentum:
        first = momentum * first - rate * g;
        w = w + first;
        break;
      case Rule::kNesterov:
        first = momentum * first - rate * g;
        w = w + (momentum * first - rate * g);
        break;
      case Rule::kAdam:
        first = first + (g - first) * mean_share;
        second = second + (g * g - second) * square_share;
        w = w - first * rate / (std::sqrt(second) + epsilon);
        break;
      case Rule::kRmsProp:
        first = first + (g * g - first) * square_share;
        second = momentum * second + g * rate / std::sqrt(first + epsilon);
        w = w - second;
        break;
    }
  }
};

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_TRAINED_H_
