#include <algorithm>
#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/parts.h"
#include "terngrad/cc/lib/statistics.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The base of ops that measure variables.
class MeasuringOp : public PathOpKernel {
 public:
  explicit MeasuringOp(OpKernelConstruction* context)
      : PathOpKernel(context), parts_(context) {}

 protected:
  // Measures variables of the sizes of `gradients`. Writes the statistics to
  // the outputs from `output` on. make(i, first, last) makes values
  // [first, last) of variable i, just before they are measured.
  template <class Make>
  void Measure(OpKernelContext* context, const OpInputList& gradients,
               const std::vector<const float*>& values, int output,
               const Make& make) const {
    std::vector<Statistics> each;
    std::vector<int64_t> ends;  // of each variable's pieces
    int64_t pieces = 0, elements = 0;
    for (int i = 0; i < gradients.size(); ++i) {
      const int64_t size = gradients[i].NumElements();
      each.emplace_back(kernels(), values[i], size, parts_[i]);
      ends.push_back(pieces += each.back().pieces());
      elements += size;
    }
    const int64_t cycles = elements / 2 / std::max<int64_t>(pieces, 1);
    Split(context, pieces, cycles, [&](int64_t begin, int64_t end) {
      int64_t i =
          std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
      for (int64_t piece = begin; piece < end; ++piece) {
        while (piece >= ends[i]) ++i;
        const int64_t own = piece - ends[i] + each[i].pieces();
        const auto [first, last] = each[i].RangeOf(own);
        make(i, first, last);
        each[i].Measure(own);
      }
    });
    Write(context, each, output);
  }

 private:
  void Write(OpKernelContext* context, const std::vector<Statistics>& each,
             int output) const {
    float* outputs[3];
    for (int i = 0; i < 3; ++i) {
      Tensor* tensor;
      OP_REQUIRES_OK(context, context->allocate_output(
                                  output + i, {parts_.total()}, &tensor));
      outputs[i] = tensor->vec<float>().data();
    }
    int64_t offset = 0;
    for (const Statistics& one : each) {
      const int64_t cycles = 4 * one.pieces() / one.parts() + 4;
      Split(context, one.parts(), cycles, [&](int64_t begin, int64_t end) {
        one.Write(begin, end, outputs[0] + offset, outputs[1] + offset,
                  outputs[2] + offset);
      });
      offset += one.parts();
    }
  }

  const PartsOfVariables parts_;
};

class StatsOp : public MeasuringOp {
 public:
  using MeasuringOp::MeasuringOp;

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    std::vector<const float*> values;
    for (const Tensor& gradient : gradients) {
      values.push_back(gradient.flat<float>().data());
    }
    Measure(context, gradients, values, 0, [](int64_t, int64_t, int64_t) {});
  }
};

class CorrectOp : public MeasuringOp {
 public:
  using MeasuringOp::MeasuringOp;

  void Compute(OpKernelContext* context) override {
    OpInputList gradients, memory;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, context->input_list("memory", &memory));
    const int n = gradients.size();
    std::vector<float*> corrected(n);
    for (int i = 0; i < n; ++i) {
      OP_REQUIRES(
          context, memory[i].shape() == gradients[i].shape(),
          Invalid("a gradient has shape ", gradients[i].shape().DebugString(),
                  "; its memory ", memory[i].shape().DebugString()));
      Tensor* output;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, gradients[i].shape(), &output));
      corrected[i] = output->flat<float>().data();
    }
    const std::vector<const float*> values(corrected.begin(), corrected.end());
    Measure(context, gradients, values, n,
            [&](int64_t i, int64_t first, int64_t last) {
              kernels().add(gradients[i].flat<float>().data() + first,
                            memory[i].flat<float>().data() + first,
                            last - first, corrected[i] + first);
            });
  }
};

REGISTER_KERNEL_BUILDER(Name("TerngradStats").Device(tensorflow::DEVICE_CPU),
                        StatsOp);
REGISTER_KERNEL_BUILDER(Name("TerngradCorrect").Device(tensorflow::DEVICE_CPU),
                        CorrectOp);

}  // namespace
}  // namespace terngrad
