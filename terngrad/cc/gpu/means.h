// Kernels that decode sums of codes, and what they do with the means.

#ifndef TERNGRAD_CC_GPU_MEANS_H_
#define TERNGRAD_CC_GPU_MEANS_H_

#include "terngrad/cc/gpu/bucket.h"
#include "terngrad/cc/gpu/scalars.h"
#include "terngrad/cc/gpu/tables.h"
#include "terngrad/cc/gpu/warp.h"
#include "terngrad/cc/lib/code_rules.h"
#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/types.h"
#include "terngrad/cc/lib/update_rules.h"

namespace terngrad {
namespace gpu {

inline constexpr int kMeanRows = 4;  // that a lane decodes at once
static_assert(kTileRows % kMeanRows == 0, "tiles are cut into them");

// Writes the sums of a lane's elements of ROWS rows.
template <int ROWS>
TERNGRAD_DEVICE static inline void LoadSums(const Planes& sums, int64_t row,
                                            int lane, int (&sum)[ROWS]) {
  const int k = sums.planes;
  const uint32_t* const words = sums.words + row * k;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    sum[r] = -static_cast<int>(words[r * k + k - 1] >> lane & 1);
  }
#pragma unroll 1
  for (int j = k - 2; j >= 0; --j) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      sum[r] = 2 * sum[r] + static_cast<int>(words[r * k + j] >> lane & 1);
    }
  }
}

// The value of a sum of 1 in the parts of a variable's values.
template <class Item>
class UnitsFrom {
 public:
  // Of values i, i + 32 and so on.
  TERNGRAD_DEVICE UnitsFrom(const Item& item, const UnitRule& rule, int64_t i)
      : scales_(item.scales), rule_(rule), parts_(item.parts, i) {
    unit_ = Current();
  }

  TERNGRAD_DEVICE float unit() const { return unit_; }

  TERNGRAD_DEVICE void Next() {
    if (!parts_.AreMany()) return;
    parts_.Next();
    unit_ = Current();
  }

 private:
  TERNGRAD_DEVICE float Current() const {
    const float unit = OneLane::Multiply(scales_[parts_.part()], rule_.share);
    return MeanUnitOf(unit, rule_.divisor);
  }

  const float* scales_;
  const UnitRule& rule_;
  PartsFrom parts_;
  float unit_;
};

// Does a job with each value's mean. A job has
//   State: what it reads of a value;
//   Load(item, i, &state): reads it;
//   Store(item, i, unit, mean, state): writes what becomes of the i-th value.
template <class Job, class Item>
TERNGRAD_DEVICE static inline void ForMeans(
    const Block& block, const Planes& sums, const Item* variables,
    int64_t count, const UnitRule& units, int64_t rows, const Job& job) {
  const Items<Item> items = {variables, count};
  // All reads of some rows come before all writes: these might write what is
  // read, for all that the compiler knows.
  // `item` is a copy, which the writes cannot change.
  const auto whole = [&](const Item item, int64_t row, int lane) {
    int64_t i = row * kWordBits + lane - item.offset;
    UnitsFrom<Item> unit(item, units, i);
#pragma unroll 1
    for (int first = 0; first < kTileRows; first += kMeanRows) {
      typename Job::State states[kMeanRows];
      int sum[kMeanRows];
#pragma unroll
      for (int r = 0; r < kMeanRows; ++r) {
        job.Load(item, i + r * kWordBits, &states[r]);
      }
      LoadSums(sums, row + first, lane, sum);
#pragma unroll
      for (int r = 0; r < kMeanRows; ++r, i += kWordBits, unit.Next()) {
        const float mean = OneLane::Multiply(unit.unit(), sum[r]);
        job.Store(item, i, unit.unit(), mean, states[r]);
      }
    }
  };
  const auto mixed = [&](int64_t item, int64_t row, int lane) {
#pragma unroll 1
    for (int r = 0; r < kTileRows && row + r < rows; ++r) {
      const int64_t element = (row + r) * kWordBits + lane;
      const Item& own = items.items[items.From(item, element)];
      const int64_t i = element - own.offset;
      if (i >= own.size) return;
      const UnitsFrom<Item> unit(own, units, i);
      int sum[1];
      LoadSums(sums, row + r, lane, sum);
      const float mean = OneLane::Multiply(unit.unit(), sum[0]);
      typename Job::State state;
      job.Load(own, i, &state);
      job.Store(own, i, unit.unit(), mean, state);
    }
  };
  ForTiles(block, items, rows,
           [&](const Warp& warp, int64_t row, int64_t item) {
             const Item& own = items.items[item];
             const bool is_whole = IsWithin(own, row * kWordBits - own.offset);
             warp.ForLanes([&](int lane) {
               if (is_whole) {
                 whole(own, row, lane);
               } else {
                 mixed(item, row, lane);
               }
             });
           });
}

struct DecodeJob {
  struct State {};
  TERNGRAD_DEVICE void Load(const Target&, int64_t, State*) const {}
  TERNGRAD_DEVICE void Store(const Target& target, int64_t i, float, float mean,
                             State) const {
    target.values[i] = mean;
  }
};

// Writes the means of all targets.
TERNGRAD_DEVICE static inline void Decode(const Block& block,
                                          const Planes& sums,
                                          const Target* targets, int64_t count,
                                          const UnitRule& units, int64_t rows) {
  ForMeans(block, sums, targets, count, units, rows, DecodeJob());
}

struct SubtractJob {
  using State = float;
  TERNGRAD_DEVICE void Load(const Kept& variable, int64_t i,
                            float* value) const {
    *value = variable.values[i];
  }
  // Where a unit is infinite, a gradient is not finite: nothing is kept.
  TERNGRAD_DEVICE void Store(const Kept& variable, int64_t i, float unit,
                             float sent, float value) const {
    const bool is_finite = unit <= 0x1.fffffep127f;
    variable.residuals[i] = is_finite ? OneLane::Subtract(value, sent) : 0.0f;
  }
};

// Writes the rounding error of the variables' codes.
TERNGRAD_DEVICE static inline void Subtract(
    const Block& block, const Planes& codes, const Kept* variables,
    int64_t count, const UnitRule& units, int64_t rows) {
  ForMeans(block, codes, variables, count, units, rows, SubtractJob());
}

template <Rule RULE>
class UpdateJob {
 public:
  // Weights, slots, averages.
  struct State {
    float x[1 + SlotCount(RULE)];
    float average;
  };

  TERNGRAD_DEVICE explicit UpdateJob(const Update& update)
      : update_(update), divisor_(OneLane::Add(1.0f, update.gain)) {}

  TERNGRAD_DEVICE void Load(const Trained& variable, int64_t i,
                            State* state) const {
    state->x[0] = variable.weights[i];
#pragma unroll
    for (int j = 0; j < SlotCount(RULE); ++j) {
      state->x[1 + j] = variable.slots[j][i];
    }
    state->average = variable.averages ? variable.averages[i] : 0.0f;
  }

  TERNGRAD_DEVICE void Store(const Trained& variable, int64_t i, float,
                             float mean, State state) const {
    Rules::template Change<RULE>(update_, mean, state.x);
    variable.weights[i] = state.x[0];
#pragma unroll
    for (int j = 0; j < SlotCount(RULE); ++j) {
      variable.slots[j][i] = state.x[1 + j];
    }
    if (!variable.averages) return;
    variable.averages[i] =
        Rules::Blend(state.average, state.x[0], update_.gain, divisor_);
  }

 private:
  using Rules = UpdateRules<OneLane>;

  const Update& update_;
  float divisor_;
};

// Updates the variables with their means, and then their averages.
template <Rule RULE>
TERNGRAD_DEVICE static inline void UpdateVariables(
    const Block& block, const Planes& sums, const Trained* variables,
    int64_t count, const Update& update, const UnitRule& units, int64_t rows) {
  ForMeans(block, sums, variables, count, units, rows, UpdateJob<RULE>(update));
}

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_MEANS_H_
