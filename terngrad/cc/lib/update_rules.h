// How mean gradients change variables: the rules of kernels.h.

#ifndef TERNGRAD_CC_LIB_UPDATE_RULES_H_
#define TERNGRAD_CC_LIB_UPDATE_RULES_H_

#include "terngrad/cc/lib/device.h"
#include "terngrad/cc/lib/types.h"

namespace terngrad {

// Everything is a template of the lanes: see kernels_impl.h. Each operation
// rounds.
template <class Lanes>
class UpdateRules {
 public:
  using Floats = typename Lanes::Floats;

  // x: the weights, then their slots.
  template <Rule RULE>
  TERNGRAD_DEVICE static void Change(const Update& update, Floats mean,
                                     Floats* x) {
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

  // Returns what an average of a weight becomes; `divisor` is 1 + gain.
  TERNGRAD_DEVICE static Floats Blend(Floats average, Floats weight, float gain,
                                      Floats divisor) {
    return Lanes::Divide(Lanes::Add(average, Times(weight, gain)), divisor);
  }

 private:
  TERNGRAD_DEVICE static Floats Times(Floats x, float factor) {
    return Lanes::Multiply(x, Lanes::Broadcast(factor));
  }

  TERNGRAD_DEVICE static Floats Toward(Floats x, Floats target, float share) {
    return Lanes::Add(x, Times(Lanes::Subtract(target, x), share));
  }

  TERNGRAD_DEVICE static Floats WithKerasMomentum(const Update& update,
                                                  Floats mean,
                                                  Floats velocity) {
    return Lanes::Subtract(Times(velocity, update.momentum),
                           Times(mean, update.rate));
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_UPDATE_RULES_H_
