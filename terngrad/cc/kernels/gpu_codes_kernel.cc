#include <vector>

#include "terngrad/cc/kernels/addends.h"
#include "terngrad/cc/kernels/gpu.h"
#include "terngrad/cc/kernels/parts.h"
#include "terngrad/cc/kernels/sources.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The statistics of gradients, and where they are written.
class MeasuringGpuOp : public OpKernel {
 public:
  explicit MeasuringGpuOp(OpKernelConstruction* context)
      : OpKernel(context), parts_(context) {}

 protected:
  // Writes the statistics of arrays to the outputs from `output` on.
  absl::Status Measure(OpKernelContext* context, const OpGpu& gpu,
                       const std::vector<gpu::Gradient>& gradients,
                       int output) const {
    float* outputs[3];
    for (int i = 0; i < 3; ++i) {
      Tensor* tensor;
      TF_RETURN_IF_ERROR(
          context->allocate_output(output + i, {parts_.total()}, &tensor));
      outputs[i] = tensor->vec<float>().data();
    }
    const int64_t count = gradients.size();
    Tensor memory;
    gpu::Place place;
    TF_RETURN_IF_ERROR(gpu.AllocateScratch(
        context, gpu::Gpu::StatsBytes(gradients.data(), count), &memory,
        &place));
    return Launched(gpu->Stats(gradients.data(), count, outputs[0], outputs[1],
                               outputs[2], place));
  }

  const PartsOfVariables& parts() const { return parts_; }

 private:
  const PartsOfVariables parts_;
};

class StatsGpuOp : public MeasuringGpuOp {
 public:
  using MeasuringGpuOp::MeasuringGpuOp;

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    OpInputList inputs;
    OP_REQUIRES_OK(context, context->input_list("gradients", &inputs));
    std::vector<gpu::Gradient> gradients;
    for (int i = 0; i < inputs.size(); ++i) {
      gradients.push_back({inputs[i].flat<float>().data(),
                           inputs[i].NumElements(), parts()[i],
                           gpu::ValueType::kFloat32});
    }
    OP_REQUIRES_OK(context, Measure(context, gpu, gradients, 0));
  }
};

class CorrectGpuOp : public MeasuringGpuOp {
 public:
  using MeasuringGpuOp::MeasuringGpuOp;

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    OpInputList inputs, memory;
    OP_REQUIRES_OK(context, context->input_list("gradients", &inputs));
    OP_REQUIRES_OK(context, context->input_list("memory", &memory));
    std::vector<gpu::Corrected> variables;
    std::vector<gpu::Gradient> corrected;
    int64_t elements = 0;
    for (int i = 0; i < inputs.size(); ++i) {
      OP_REQUIRES(
          context, memory[i].shape() == inputs[i].shape(),
          Invalid("a gradient has shape ", inputs[i].shape().DebugString(),
                  "; its memory ", memory[i].shape().DebugString()));
      Tensor* output;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, inputs[i].shape(), &output));
      float* const sums = output->flat<float>().data();
      const int64_t size = output->NumElements();
      variables.push_back({inputs[i].flat<float>().data(),
                           memory[i].flat<float>().data(), sums, size, 0,
                           gpu::ValueType::kFloat32});
      corrected.push_back({sums, size, parts()[i], gpu::ValueType::kFloat32});
      elements += size;
    }
    OP_REQUIRES_OK(context,
                   LaunchWithTable(context, gpu, variables, [&](auto place) {
                     return gpu->Correct(variables.data(), variables.size(),
                                         WordsOf(elements), place);
                   }));
    OP_REQUIRES_OK(context, Measure(context, gpu, corrected, inputs.size()));
  }
};

class EncodeGpuOp : public OpKernel {
 public:
  explicit EncodeGpuOp(OpKernelConstruction* context)
      : OpKernel(context), reader_(context) {}

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    NodeKey key;
    const float *bounds, *scales;
    OpInputList gradients;
    OP_REQUIRES_OK(context, reader_.ReadKey(context, &key));
    OP_REQUIRES_OK(context, reader_.ReadNumbers(context, "bounds", &bounds));
    OP_REQUIRES_OK(context, reader_.ReadNumbers(context, "scales", &scales));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    std::vector<gpu::Source> sources;
    int64_t elements = 0;
    for (int i = 0; i < gradients.size(); ++i) {
      const Parts& parts = reader_.parts()[i];
      const int64_t size = gradients[i].NumElements();
      sources.push_back({gradients[i].flat<float>().data(), size, 0, 0, parts,
                         bounds, scales, reader_.variable(i),
                         gpu::ValueType::kFloat32});
      bounds += parts.count;
      scales += parts.count;
      elements += size;
    }
    const int64_t rows = WordsOf(elements);
    Tensor* words;
    OP_REQUIRES_OK(
        context, context->allocate_output(0, {rows, reader_.planes()}, &words));
    OP_REQUIRES_OK(
        context, LaunchWithTable(context, gpu, sources, [&](auto place) {
          return gpu->Encode(reader_.encoder().c_str(), sources.data(),
                             sources.size(), key, rows,
                             words->flat<uint32_t>().data(), place);
        }));
  }

 private:
  const SourcesReader reader_;
};

class SumGpuOp : public OpKernel {
 public:
  explicit SumGpuOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadPlanes(context, &planes_));
  }

  void Compute(OpKernelContext* context) override {
    OpGpu gpu;
    OP_REQUIRES_OK(context, gpu.Find(context));
    std::vector<Planes> inputs;
    int64_t rows;
    OP_REQUIRES_OK(context, ReadWords(context, &inputs, &rows));
    Tensor* total;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {rows, planes_}, &total));
    OP_REQUIRES_OK(
        context, LaunchWithTable(context, gpu, inputs, [&](auto place) {
          return gpu->Sum(inputs.data(), inputs.size(), planes_, rows,
                          total->flat<uint32_t>().data(), place);
        }));
  }

 private:
  int planes_;
};

#define GPU_KERNEL(name) \
  Name(name).Device(tensorflow::DEVICE_GPU).AttrConstraint("path", kGpuPath)

REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradStats"), StatsGpuOp);
REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradCorrect"), CorrectGpuOp);
REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradEncode")
                            .HostMemory("seed")
                            .HostMemory("step")
                            .HostMemory("node"),
                        EncodeGpuOp);
REGISTER_KERNEL_BUILDER(GPU_KERNEL("TerngradSum"), SumGpuOp);

#undef GPU_KERNEL

}  // namespace
}  // namespace terngrad
