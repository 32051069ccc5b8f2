// The GPUs on which TensorFlow's ops compute.

#ifndef TERNGRAD_CC_GPU_GPUS_H_
#define TERNGRAD_CC_GPU_GPUS_H_

#include <memory>

#include "terngrad/cc/gpu/launch.h"

namespace terngrad {
namespace gpu {

// Keeps a GPU with its kernels until the process ends; the first one of an
// ordinal stays. Its ops find it by that.
void RegisterGpu(int ordinal, std::unique_ptr<Gpu> gpu);

// Returns a GPU that is kept; null if there is none.
const Gpu* FindGpu(int ordinal);

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_GPUS_H_
