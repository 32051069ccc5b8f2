#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/targets.h"
#include "terngrad/cc/kernels/trained.h"

namespace terngrad {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class UpdateOp : public PathOpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* context)
      : PathOpKernel(context), parts_(context) {
    OP_REQUIRES_OK(context, ReadRule(context, &update_));
  }

  void Compute(OpKernelContext* context) override {
    NumbersOfParts units;
    Planes sums;
    Update update = update_;
    OP_REQUIRES_OK(context, ReadRates(context, &update));
    OP_REQUIRES_OK(context, ReadMeanUnits(context, parts_, &units));
    LockedVariables locked;
    std::vector<TrainedArrays> found;
    const auto copy = [&](const Tensor& from, Tensor* to) {
      to->flat<float>().device(context->eigen_cpu_device()) =
          from.flat<float>();
      return absl::OkStatus();
    };
    OP_REQUIRES_OK(context,
                   FindTrained(context, update.rule, copy, &locked, &found));
    std::vector<Trained> variables;
    int64_t elements = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const TrainedArrays& own = found[i];
      variables.push_back({own.weights,
                           {own.slots[0], own.slots[1]},
                           own.averages,
                           own.size,
                           Units{parts_[i], units[i]}});
      elements += own.size;
    }
    OP_REQUIRES_OK(context, ReadSums(context, elements, &sums));
    constexpr int64_t kCycles = 2 * kWordBits;  // the memory's
    Split(context, WordsOf(elements), kCycles, [&](int64_t begin, int64_t end) {
      kernels().update(sums, variables.data(), variables.size(), update, begin,
                       end);
    });
  }

 private:
  const PartsOfVariables parts_;
  Update update_ = {};  // without what the inputs say
};

REGISTER_KERNEL_BUILDER(Name("TerngradUpdate").Device(tensorflow::DEVICE_CPU),
                        UpdateOp);

}  // namespace
}  // namespace terngrad
