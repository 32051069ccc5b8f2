#include <algorithm>
#include <cstring>
#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// A run of values that is summed at once.
struct Block {
  const float* values;
  int64_t count;
};

class StatsOp : public PathOpKernel {
 public:
  using PathOpKernel::PathOpKernel;

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    std::vector<Block> blocks;
    std::vector<int64_t> ends;  // of each gradient's blocks
    for (const Tensor& gradient : gradients) {
      const float* values = gradient.flat<float>().data();
      const int64_t size = gradient.NumElements();
      for (int64_t i = 0; i < size; i += kStatsBlock) {
        blocks.push_back(
            {values + i, std::min<int64_t>(kStatsBlock, size - i)});
      }
      ends.push_back(blocks.size());
    }
    std::vector<BlockStats> stats(blocks.size());
    constexpr int64_t kCycles = kStatsBlock / 2;
    Split(context, blocks.size(), kCycles, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        stats[i] = kernels().stats(blocks[i].values, blocks[i].count);
      }
    });
    Write(context, stats, ends);
  }

 private:
  static void Write(OpKernelContext* context,
                    const std::vector<BlockStats>& stats,
                    const std::vector<int64_t>& ends) {
    Tensor* outputs[3];
    const int64_t n = ends.size();
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(context, context->allocate_output(i, {n}, &outputs[i]));
    }
    int64_t block = 0;
    for (int64_t i = 0; i < n; ++i) {
      BlockStats total = {};
      for (; block < ends[i]; ++block) {
        total.sum += stats[block].sum;
        total.sum_of_squares += stats[block].sum_of_squares;
        total.max_bits = std::max(total.max_bits, stats[block].max_bits);
      }
      outputs[0]->vec<float>()(i) = static_cast<float>(total.sum);
      outputs[1]->vec<float>()(i) = static_cast<float>(total.sum_of_squares);
      outputs[2]->vec<float>()(i) = Magnitude(total.max_bits);
    }
  }

  static float Magnitude(uint32_t bits) {
    constexpr uint32_t kSmallestNormalBits = 0x00800000;
    if (bits < kSmallestNormalBits) return 0.0f;
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
    return magnitude;
  }
};

REGISTER_KERNEL_BUILDER(Name("TerngradStats").Device(tensorflow::DEVICE_CPU),
                        StatsOp);

}  // namespace
}  // namespace terngrad
