// Shared by the ops' kernels for GPUs: each launches kernels of cc/gpu on
// TensorFlow's stream and waits for nothing.

#ifndef TERNGRAD_CC_KERNELS_GPU_H_
#define TERNGRAD_CC_KERNELS_GPU_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "terngrad/cc/gpu/gpus.h"
#include "terngrad/cc/gpu/launch.h"
#include "terngrad/cc/kernels/common.h"
#include "xla/stream_executor/stream.h"

namespace terngrad {

// The attribute `path` of ops on GPUs. With another one an op has only its
// kernel for CPUs, so TensorFlow places no op of CPU tensors on a GPU.
inline constexpr char kGpuPath[] = "gpu";

// The GPU on which an op runs, and its stream.
class OpGpu {
 public:
  // Fails where the GPU's kernels were not loaded: terngrad/gpu/ops.py does it.
  absl::Status Find(tensorflow::OpKernelContext* context) {
    const auto* const info =
        context->device()->tensorflow_accelerator_device_info();
    gpu_ = info ? gpu::FindGpu(info->gpu_id) : nullptr;
    if (!gpu_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the kernels are not loaded onto GPU ", info ? info->gpu_id : -1));
    }
    stream_ = context->op_device_context()
                  ->stream()
                  ->platform_specific_handle()
                  .stream;
    return absl::OkStatus();
  }

  const gpu::Gpu* operator->() const { return gpu_; }
  gpu::Stream stream() const { return stream_; }

  // Takes scratch memory from TensorFlow, which reuses it for later work on the
  // same stream. `memory` holds it until the launch.
  absl::Status AllocateScratch(tensorflow::OpKernelContext* context,
                               int64_t bytes, tensorflow::Tensor* memory,
                               gpu::Place* place) const {
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensorflow::DT_UINT8, {bytes}, memory));
    *place = {stream_, memory->flat<uint8_t>().data()};
    return absl::OkStatus();
  }

 private:
  const gpu::Gpu* gpu_ = nullptr;
  gpu::Stream stream_ = nullptr;
};

// Returns the status of a launch, which says why it failed, or nothing. Its
// code is none of a lost process (terngrad/exchange/operation_errors.py).
inline absl::Status Launched(const std::string& error) {
  if (error.empty()) return absl::OkStatus();
  if (error.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos) {
    return absl::ResourceExhaustedError(error);
  }
  return absl::UnknownError(error);
}

// Calls run(place) with scratch memory for a table of items.
template <class Item, class Run>
absl::Status LaunchWithTable(tensorflow::OpKernelContext* context,
                             const OpGpu& gpu, const std::vector<Item>& items,
                             const Run& run) {
  tensorflow::Tensor table;
  gpu::Place place;
  TF_RETURN_IF_ERROR(gpu.AllocateScratch(
      context, gpu::Gpu::TableBytes<Item>(items.size()), &table, &place));
  return Launched(run(place));
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_GPU_H_
