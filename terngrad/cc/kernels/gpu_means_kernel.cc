#include <utility>
#include <vector>

#include "terngrad/cc/kernels/gpu.h"
#include "terngrad/cc/kernels/parts.h"
#include "terngrad/cc/kernels/targets.h"
#include "terngrad/cc/kernels/trained.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class DecodeGpuOp : public OpKernel {
 public:
  explicit DecodeGpuOp(OpKernelConstruction* context)
      : OpKernel(context), parts_(context) {
    OP_REQUIRES_OK(context, ReadShapes(context, &shapes_, &elements_));
  }

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    Planes sums;
    const float* units;
    float nodes;
    OpOutputList means;
    OP_REQUIRES_OK(context, ReadSums(context, elements_, &sums));
    OP_REQUIRES_OK(context, FindUnits(context, parts_, &units));
    OP_REQUIRES_OK(context, ReadNodes(context, &nodes));
    OP_REQUIRES_OK(context, context->output_list("means", &means));
    std::vector<gpu::Target> targets;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      Tensor* mean;
      OP_REQUIRES_OK(context, means.allocate(i, shapes_[i], &mean));
      targets.push_back({mean->flat<float>().data(), mean->NumElements(), 0,
                         parts_[i], units});
      units += parts_[i].count;
    }
    OP_REQUIRES_OK(
        context, LaunchWithTable(context, gpu, targets, [&](auto place) {
          return gpu->Decode(sums, targets.data(), targets.size(),
                             {1.0f, nodes}, WordsOf(elements_), place);
        }));
  }

 private:
  const PartsOfVariables parts_;
  std::vector<TensorShape> shapes_;
  int64_t elements_ = 0;
};

class SubtractGpuOp : public OpKernel {
 public:
  explicit SubtractGpuOp(OpKernelConstruction* context)
      : OpKernel(context), parts_(context) {}

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    OpInputList values;
    const float* units;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    OP_REQUIRES_OK(context, FindUnits(context, parts_, &units));
    std::vector<gpu::Kept> variables;
    int64_t elements = 0;
    for (int i = 0; i < values.size(); ++i) {
      Tensor* residuals;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, values[i].shape(), &residuals));
      const int64_t size = values[i].NumElements();
      variables.push_back({values[i].flat<float>().data(),
                           residuals->flat<float>().data(), size, 0, parts_[i],
                           units});
      units += parts_[i].count;
      elements += size;
    }
    Planes codes;
    OP_REQUIRES_OK(context, ReadSums(context, elements, &codes));
    OP_REQUIRES_OK(
        context, LaunchWithTable(context, gpu, variables, [&](auto place) {
          return gpu->Subtract(codes, variables.data(), variables.size(),
                               {1.0f, 1.0f}, WordsOf(elements), place);
        }));
  }

 private:
  const PartsOfVariables parts_;
};

class UpdateGpuOp : public OpKernel {
 public:
  explicit UpdateGpuOp(OpKernelConstruction* context)
      : OpKernel(context), parts_(context) {
    OP_REQUIRES_OK(context, ReadRule(context, &update_));
  }

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    const float* units;
    float nodes;
    Update update = update_;
    OP_REQUIRES_OK(context, ReadRates(context, &update));
    OP_REQUIRES_OK(context, FindUnits(context, parts_, &units));
    OP_REQUIRES_OK(context, ReadNodes(context, &nodes));
    LockedVariables locked;
    std::vector<TrainedArrays> found;
    const auto copy = [&](const Tensor& from, Tensor* to) {
      return Launched(
          gpu->Copy(from.data(), from.TotalBytes(), to->data(), gpu.stream()));
    };
    OP_REQUIRES_OK(context,
                   FindTrained(context, update.rule, copy, &locked, &found));
    std::vector<gpu::Trained> variables;
    int64_t elements = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const TrainedArrays& own = found[i];
      variables.push_back({own.weights,
                           {own.slots[0], own.slots[1]},
                           own.averages,
                           own.size,
                           0,
                           parts_[i],
                           units});
      units += parts_[i].count;
      elements += own.size;
    }
    Planes sums;
    OP_REQUIRES_OK(context, ReadSums(context, elements, &sums));
    OP_REQUIRES_OK(
        context, LaunchWithTable(context, gpu, variables, [&](auto place) {
          return gpu->ApplyUpdate(sums, variables.data(), variables.size(),
                                  update, {1.0f, nodes}, WordsOf(elements),
                                  place);
        }));
  }

 private:
  const PartsOfVariables parts_;
  Update update_ = {};  // without what the inputs say
};

#define GPU_KERNEL(name) \
  Name(name).Device(tensorflow::DEVICE_GPU).AttrConstraint("path", kGpuPath)

REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradDecode").HostMemory("nodes"),
                        DecodeGpuOp);
REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradSubtract"), SubtractGpuOp);
REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradUpdate")
                            .HostMemory("nodes")
                            .HostMemory("rate")
                            .HostMemory("gain")
                            .HostMemory("weights")
                            .HostMemory("slots")
                            .HostMemory("averages"),
                        UpdateGpuOp);

#undef GPU_KERNEL

}  // namespace
}  // namespace terngrad
