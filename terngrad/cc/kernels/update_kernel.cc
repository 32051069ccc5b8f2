#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/targets.h"

namespace terngrad {
namespace {

using tensorflow::mutex;
using tensorflow::mutex_lock;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

// The variables that an op changes. As in TensorFlow's own updates, nobody else
// reads or writes them while this lives.
class LockedVariables {
 public:
  // Looks up the variables of the inputs and locks them.
  absl::Status Lock(OpKernelContext* context,
                    const std::vector<OpInputList>& inputs) {
    std::vector<mutex*> locks;
    for (const OpInputList& handles : inputs) {
      for (const Tensor& handle : handles) {
        RefCountPtr<Var> variable;
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
    for (mutex* lock : locks) held_.emplace_back(*lock);
    return absl::OkStatus();
  }

  // Returns the values of the i-th variable, to write to them. If somebody
  // still holds the tensor, the variable gets a copy first.
  absl::Status FindValues(OpKernelContext* context, int i, Tensor** values) {
    Var* const variable = variables_[i].get();
    Tensor* const own = variable->tensor();
    if (!variable->is_initialized || own->dtype() != tensorflow::DT_FLOAT) {
      return Invalid("a variable has no values of type float");
    }
    if (variable->copy_on_read_mode || !own->RefCountIsOne()) {
      Tensor copy;
      TF_RETURN_IF_ERROR(
          context->allocate_temp(own->dtype(), own->shape(), &copy));
      copy.flat<float>().device(context->eigen_cpu_device()) =
          own->flat<float>();
      *own = copy;
    }
    *values = own;
    return absl::OkStatus();
  }

 private:
  std::vector<RefCountPtr<Var>> variables_;
  std::vector<mutex_lock> held_;  // released before the variables
};

constexpr std::pair<const char*, Rule> kRules[] = {
    {"momentum", Rule::kMomentum},
    {"keras_momentum", Rule::kKerasMomentum},
    {"nesterov", Rule::kNesterov},
    {"adam", Rule::kAdam},
    {"rmsprop", Rule::kRmsProp}};

class UpdateOp : public PathOpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* context)
      : PathOpKernel(context), parts_(context) {
    std::string rule;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    for (const auto& [name, value] : kRules) {  // the op allows no other name
      if (rule == name) update_.rule = value;
    }
    for (const auto& [name, value] :
         {std::pair("momentum", &update_.momentum),
          std::pair("mean_share", &update_.mean_share),
          std::pair("square_share", &update_.square_share),
          std::pair("epsilon", &update_.epsilon)}) {
      OP_REQUIRES_OK(context, context->GetAttr(name, value));
    }
  }

  void Compute(OpKernelContext* context) override {
    LockedVariables locked;
    NumbersOfParts units;
    std::vector<Trained> variables;
    int64_t elements = 0;
    Planes sums;
    Update update = update_;
    OP_REQUIRES_OK(context, ReadScalar(context, "rate", &update.rate));
    OP_REQUIRES_OK(context, ReadScalar(context, "gain", &update.gain));
    OP_REQUIRES_OK(context, Find(context, &locked, &units, &variables));
    for (const Trained& variable : variables) elements += variable.size;
    OP_REQUIRES_OK(context, ReadSums(context, elements, &sums));
    constexpr int64_t kCycles = 2 * kWordBits;  // the memory's
    Split(context, WordsOf(elements), kCycles, [&](int64_t begin, int64_t end) {
      kernels().update(sums, variables.data(), variables.size(), update, begin,
                       end);
    });
  }

 private:
  static absl::Status ReadScalar(OpKernelContext* context, const char* name,
                                 float* value) {
    const Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    if (!tensorflow::TensorShapeUtils::IsScalar(tensor->shape())) {
      return Invalid(name, " must be a scalar");
    }
    *value = tensor->scalar<float>()();
    return absl::OkStatus();
  }

  // The variables point to the units.
  absl::Status Find(OpKernelContext* context, LockedVariables* locked,
                    NumbersOfParts* units,
                    std::vector<Trained>* variables) const {
    OpInputList weights, slots, averages;
    TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
    TF_RETURN_IF_ERROR(context->input_list("slots", &slots));
    TF_RETURN_IF_ERROR(context->input_list("averages", &averages));
    const int n = weights.size(), count = SlotCount(update_.rule);
    if (slots.size() != count * n) {
      return Invalid("there are ", slots.size(), " slots; allowed are ",
                     count * n);
    }
    if (averages.size() != 0 && averages.size() != n) {
      return Invalid("there are ", averages.size(),
                     " averages; allowed are 0 and ", n);
    }
    TF_RETURN_IF_ERROR(ReadMeanUnits(context, parts_, units));
    TF_RETURN_IF_ERROR(locked->Lock(context, {weights, slots, averages}));
    for (int i = 0; i < n; ++i) {
      Tensor* w;
      TF_RETURN_IF_ERROR(locked->FindValues(context, i, &w));
      Trained variable = {w->flat<float>().data(),
                          {},
                          nullptr,
                          w->NumElements(),
                          Units{parts_[i], (*units)[i]}};
      for (int j = 0; j < count + (averages.size() > 0); ++j) {
        Tensor* kept;
        TF_RETURN_IF_ERROR(locked->FindValues(context, (1 + j) * n + i, &kept));
        if (kept->shape() != w->shape()) {
          return Invalid("weights have shape ", w->shape().DebugString(), "; ",
                         j < count ? "a slot" : "an average", " of theirs has ",
                         kept->shape().DebugString());
        }
        (j < count ? variable.slots[j] : variable.averages) =
            kept->flat<float>().data();
      }
      variables->push_back(variable);
    }
    return absl::OkStatus();
  }

  const PartsOfVariables parts_;
  Update update_ = {};  // without what the inputs say
};

REGISTER_KERNEL_BUILDER(Name("TerngradUpdate").Device(tensorflow::DEVICE_CPU),
                        UpdateOp);

}  // namespace
}  // namespace terngrad
