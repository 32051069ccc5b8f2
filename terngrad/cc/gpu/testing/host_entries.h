// Runs the entry points of kernels.cu on the host, where tables and arrays are
// in host memory: for tests without a GPU.

#ifndef TERNGRAD_CC_GPU_TESTING_HOST_ENTRIES_H_
#define TERNGRAD_CC_GPU_TESTING_HOST_ENTRIES_H_

#include <cstdint>

namespace terngrad {
namespace gpu {

// Runs blocks [0, blocks) of `threads` threads. `arguments` point to the
// arguments, as those of cuLaunchKernel.
using HostEntry = void (*)(void** arguments, int64_t blocks, int threads);

// Returns the entry of a name of entries.h; null if it is unknown.
HostEntry FindHostEntry(const char* name);

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_TESTING_HOST_ENTRIES_H_
