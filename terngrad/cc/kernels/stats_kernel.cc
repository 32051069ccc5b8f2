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

class StatsOp : public PathOpKernel {
 public:
  explicit StatsOp(OpKernelConstruction* context)
      : PathOpKernel(context), parts_(context) {}

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    std::vector<Statistics> each;
    std::vector<int64_t> ends;  // of each gradient's pieces
    int64_t pieces = 0, elements = 0;
    for (int i = 0; i < gradients.size(); ++i) {
      const int64_t size = gradients[i].NumElements();
      each.emplace_back(kernels(), gradients[i].flat<float>().data(), size,
                        parts_[i]);
      ends.push_back(pieces += each.back().pieces());
      elements += size;
    }
    const int64_t cycles = elements / 2 / std::max<int64_t>(pieces, 1);
    Split(context, pieces, cycles, [&](int64_t begin, int64_t end) {
      int64_t i =
          std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
      for (int64_t piece = begin; piece < end; ++piece) {
        while (piece >= ends[i]) ++i;
        each[i].Measure(piece - ends[i] + each[i].pieces());
      }
    });
    Write(context, each);
  }

 private:
  void Write(OpKernelContext* context,
             const std::vector<Statistics>& each) const {
    float* outputs[3];
    for (int i = 0; i < 3; ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context,
                     context->allocate_output(i, {parts_.total()}, &output));
      outputs[i] = output->vec<float>().data();
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

REGISTER_KERNEL_BUILDER(Name("TerngradStats").Device(tensorflow::DEVICE_CPU),
                        StatsOp);

}  // namespace
}  // namespace terngrad
