#include <string>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/targets.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

// Finds the memory of a float variable, to write to it. If somebody still reads
// the tensor, the variable gets a copy first, as from TensorFlow's own updates.
absl::Status FindValues(OpKernelContext* context, const Tensor& handle,
                        Tensor* values) {
  tensorflow::core::RefCountPtr<Var> variable;
  TF_RETURN_IF_ERROR(LookupResource(
      context, handle.scalar<tensorflow::ResourceHandle>()(), &variable));
  const tensorflow::mutex_lock lock(*variable->mu());
  Tensor* const held = variable->tensor();
  if (!variable->is_initialized || held->dtype() != tensorflow::DT_FLOAT) {
    return Invalid("a variable has no values of type float");
  }
  if (variable->copy_on_read_mode || !held->RefCountIsOne()) {
    Tensor copy;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(held->dtype(), held->shape(), &copy));
    copy.flat<float>() = held->flat<float>();
    *held = copy;
  }
  *values = *held;
  return absl::OkStatus();
}

class MomentumOp : public PathOpKernel {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : PathOpKernel(context) {
    std::string rule;
    OP_REQUIRES_OK(context, context->GetAttr("momentum", &update_.momentum));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    update_.rule = rule == "keras"      ? Rule::kKeras
                   : rule == "nesterov" ? Rule::kNesterov
                                        : Rule::kMomentum;
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Tensor> held;
    std::vector<Trained> variables;
    int64_t elements = 0;
    Planes sums;
    const Tensor* rate;
    OP_REQUIRES_OK(context, context->input("rate", &rate));
    OP_REQUIRES(context, tensorflow::TensorShapeUtils::IsScalar(rate->shape()),
                Invalid("rate must be a scalar"));
    OP_REQUIRES_OK(context, Find(context, &held, &variables));
    for (const Trained& variable : variables) elements += variable.size;
    OP_REQUIRES_OK(context, ReadSums(context, elements, &sums));
    Update update = update_;
    update.rate = rate->scalar<float>()();
    constexpr int64_t kCycles = 2 * kWordBits;  // the memory's
    Split(context, WordsOf(elements), kCycles, [&](int64_t begin, int64_t end) {
      kernels().momentum(sums, variables.data(), variables.size(), update,
                         begin, end);
    });
  }

 private:
  // `held` owns the memory of the variables.
  static absl::Status Find(OpKernelContext* context, std::vector<Tensor>* held,
                           std::vector<Trained>* variables) {
    OpInputList weights, velocities;
    std::vector<float> units;
    TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
    TF_RETURN_IF_ERROR(context->input_list("velocities", &velocities));
    TF_RETURN_IF_ERROR(ReadUnits(context, weights.size(), &units));
    for (int i = 0; i < weights.size(); ++i) {
      Tensor w, v;
      TF_RETURN_IF_ERROR(FindValues(context, weights[i], &w));
      TF_RETURN_IF_ERROR(FindValues(context, velocities[i], &v));
      if (w.shape() != v.shape()) {
        return Invalid("weights have shape ", w.shape().DebugString(),
                       "; their velocities have ", v.shape().DebugString());
      }
      variables->push_back({w.flat<float>().data(), v.flat<float>().data(),
                            w.NumElements(), units[i]});
      held->push_back(w);
      held->push_back(v);
    }
    return absl::OkStatus();
  }

  Update update_ = {};  // without a rate, which is an input
};

REGISTER_KERNEL_BUILDER(
    Name("TerngradApplyMomentum").Device(tensorflow::DEVICE_CPU), MomentumOp);

}  // namespace
}  // namespace terngrad
