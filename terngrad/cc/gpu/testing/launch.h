// Runs the kernels for GPUs on the host, as the driver launches them.

#ifndef TERNGRAD_CC_GPU_TESTING_LAUNCH_H_
#define TERNGRAD_CC_GPU_TESTING_LAUNCH_H_

#include <cstdint>
#include <string>

#include "terngrad/cc/gpu/testing/host_entries.h"
#include "terngrad/cc/lib/testing/checks.h"

namespace terngrad {
namespace gpu {
namespace testing {

// Runs an entry point as the driver does.
template <class... Arguments>
void Launch(const char* entry, int64_t blocks, int threads,
            Arguments... arguments) {
  const HostEntry run = FindHostEntry(entry);
  if (!run) {
    ::terngrad::testing::Fail(__FILE__, __LINE__,
                              std::string("no entry ") + entry);
  }
  void* places[] = {&arguments...};
  run(places, blocks, threads);
}

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_TESTING_LAUNCH_H_
