#include <algorithm>
#include <cmath>
#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/targets.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class SubtractOp : public PathOpKernel {
 public:
  explicit SubtractOp(OpKernelConstruction* context)
      : PathOpKernel(context), parts_(context) {}

  void Compute(OpKernelContext* context) override {
    OpInputList values;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    NumbersOfParts units;
    OP_REQUIRES_OK(context, ReadUnits(context, parts_, 1.0f, &units));
    std::vector<Kept> variables;
    int64_t elements = 0;
    for (int i = 0; i < values.size(); ++i) {
      Tensor* residuals;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, values[i].shape(), &residuals));
      variables.push_back(
          {values[i].flat<float>().data(), residuals->flat<float>().data(),
           values[i].NumElements(), Units{parts_[i], units[i]}});
      elements += values[i].NumElements();
    }
    Planes codes;
    OP_REQUIRES_OK(context, ReadSums(context, elements, &codes));
    constexpr int64_t kCycles = kWordBits;  // the memory's
    Split(context, WordsOf(elements), kCycles, [&](int64_t begin, int64_t end) {
      kernels().subtract(codes, variables.data(), variables.size(), begin, end);
    });
    for (const Kept& variable : variables) Settle(variable);
  }

 private:
  // Where a unit is infinite, a gradient is not finite: nothing is kept.
  static void Settle(const Kept& variable) {
    const Parts& parts = variable.units.parts;
    const float* const units = variable.units.values;
    const auto is_finite = [](float unit) { return std::isfinite(unit); };
    if (std::all_of(units, units + parts.count, is_finite)) return;
    for (int64_t i = 0; i < variable.size; ++i) {
      const int64_t part = (parts.first + i) / parts.block % parts.count;
      if (!is_finite(units[part])) variable.residuals[i] = 0.0f;
    }
  }

  const PartsOfVariables parts_;
};

REGISTER_KERNEL_BUILDER(Name("TerngradSubtract").Device(tensorflow::DEVICE_CPU),
                        SubtractOp);

}  // namespace
}  // namespace terngrad
