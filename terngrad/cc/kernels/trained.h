// The variables of the op that updates them, and the update.

#ifndef TERNGRAD_CC_KERNELS_TRAINED_H_
#define TERNGRAD_CC_KERNELS_TRAINED_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "terngrad/cc/kernels/common.h"

namespace terngrad {

// The variables that an op changes. As in TensorFlow's own updates, nobody else
// reads or writes them while this lives.
class LockedVariables {
 public:
  // Looks up the variables of the inputs and locks them.
  absl::Status Lock(tensorflow::OpKernelContext* context,
                    const std::vector<tensorflow::OpInputList>& inputs) {
    std::vector<tensorflow::mutex*> locks;
    for (const tensorflow::OpInputList& handles : inputs) {
      for (const tensorflow::Tensor& handle : handles) {
        tensorflow::core::RefCountPtr<tensorflow::Var> variable;
        TF_RETURN_IF_ERROR(LookupResource(
            context, handle.scalar<tensorflow::ResourceHandle>()(), &variable));
        locks.push_back(variable->mu());
        variables_.push_back(std::move(variable));
      }
    }
    std::sort(locks.begin(), locks.end());  // the order of all ops
    if (std::unique(locks.begin(), locks.end()) != locks.end()) {
      return Invalid("a variable occurs twice");
    }
    for (tensorflow::mutex* lock : locks) held_.emplace_back(*lock);
    return absl::OkStatus();
  }

  // Returns the values of the i-th variable, to write to them. If the tensor is
  // shared, the variable gets a copy first, by copy(from, &to).
  template <class Copy>
  absl::Status FindValues(tensorflow::OpKernelContext* context, int i,
                          const Copy& copy, tensorflow::Tensor** values) {
    tensorflow::Var* const variable = variables_[i].get();
    tensorflow::Tensor* const own = variable->tensor();
    if (!variable->is_initialized || own->dtype() != tensorflow::DT_FLOAT) {
      return Invalid("a variable has no values of type float");
    }
    if (variable->copy_on_read_mode || !own->RefCountIsOne()) {
      tensorflow::Tensor other;
      TF_RETURN_IF_ERROR(
          context->allocate_temp(own->dtype(), own->shape(), &other));
      TF_RETURN_IF_ERROR(copy(*own, &other));
      *own = other;
    }
    *values = own;
    return absl::OkStatus();
  }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::mutex_lock> held_;  // released before the variables
};

inline constexpr std::pair<const char*, Rule> kRules[] = {
    {"momentum", Rule::kMomentum},
    {"keras_momentum", Rule::kKerasMomentum},
    {"nesterov", Rule::kNesterov},
    {"adam", Rule::kAdam},
    {"rmsprop", Rule::kRmsProp}};

// Reads the attributes of an update.
inline absl::Status ReadRule(tensorflow::OpKernelConstruction* context,
                             Update* update) {
  std::string rule;
  TF_RETURN_IF_ERROR(context->GetAttr("rule", &rule));
  for (const auto& [name, value] : kRules) {  // the op allows no other name
    if (rule == name) update->rule = value;
  }
  for (const auto& [name, value] :
       {std::pair("momentum", &update->momentum),
        std::pair("mean_share", &update->mean_share),
        std::pair("square_share", &update->square_share),
        std::pair("epsilon", &update->epsilon)}) {
    TF_RETURN_IF_ERROR(context->GetAttr(name, value));
  }
  return absl::OkStatus();
}

// Reads the inputs `rate` and `gain`.
inline absl::Status ReadRates(tensorflow::OpKernelContext* context,
                              Update* update) {
  for (const auto& [name, value] :
       {std::pair("rate", &update->rate), std::pair("gain", &update->gain)}) {
    const tensorflow::Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    if (!tensorflow::TensorShapeUtils::IsScalar(tensor->shape())) {
      return Invalid(name, " must be a scalar");
    }
    *value = tensor->scalar<float>()();
  }
  return absl::OkStatus();
}

// The arrays of a variable that is trained; see Trained.
struct TrainedArrays {
  float* weights;
  float* slots[2];
  float* averages;
  int64_t size;
};

// Finds the inputs `weights`, `slots` and `averages`, and locks them. `copy` is
// that of LockedVariables.
template <class Copy>
absl::Status FindTrained(tensorflow::OpKernelContext* context, Rule rule,
                         const Copy& copy, LockedVariables* locked,
                         std::vector<TrainedArrays>* found) {
  tensorflow::OpInputList weights, slots, averages;
  TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
  TF_RETURN_IF_ERROR(context->input_list("slots", &slots));
  TF_RETURN_IF_ERROR(context->input_list("averages", &averages));
  const int n = weights.size(), count = SlotCount(rule);
  if (slots.size() != count * n) {
    return Invalid("there are ", slots.size(), " slots; allowed are ",
                   count * n);
  }
  if (averages.size() != 0 && averages.size() != n) {
    return Invalid("there are ", averages.size(),
                   " averages; allowed are 0 and ", n);
  }
  TF_RETURN_IF_ERROR(locked->Lock(context, {weights, slots, averages}));
  for (int i = 0; i < n; ++i) {
    tensorflow::Tensor* w;
    TF_RETURN_IF_ERROR(locked->FindValues(context, i, copy, &w));
    TrainedArrays own = {
        w->flat<float>().data(), {}, nullptr, w->NumElements()};
    for (int j = 0; j < count + (averages.size() > 0); ++j) {
      tensorflow::Tensor* kept;
      TF_RETURN_IF_ERROR(
          locked->FindValues(context, (1 + j) * n + i, copy, &kept));
      if (kept->shape() != w->shape()) {
        return Invalid("weights have shape ", w->shape().DebugString(), "; ",
                       j < count ? "a slot" : "an average", " of theirs has ",
                       kept->shape().DebugString());
      }
      (j < count ? own.slots[j] : own.averages) = kept->flat<float>().data();
    }
    found->push_back(own);
  }
  return absl::OkStatus();
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_TRAINED_H_
