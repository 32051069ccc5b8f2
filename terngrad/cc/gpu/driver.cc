#include "terngrad/cc/gpu/driver.h"

#include <dlfcn.h>

namespace terngrad {
namespace gpu {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function* place) {
  *place = reinterpret_cast<Function>(dlsym(library, name));
  return *place != nullptr;
}

// Returns the first function that a library lacks; null if it has all.
const char* Missing(void* library, Driver* found) {
#define FIND(name) \
  if (!Find(library, #name, &found->name)) return #name
  FIND(cuInit);
  FIND(cuDriverGetVersion);
  FIND(cuGetErrorName);
  FIND(cuGetErrorString);
  FIND(cuDeviceGet);
  FIND(cuDeviceGetAttribute);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuDevicePrimaryCtxRelease_v2);
  FIND(cuCtxPushCurrent_v2);
  FIND(cuCtxPopCurrent_v2);
  FIND(cuModuleLoadData);
  FIND(cuModuleUnload);
  FIND(cuModuleGetFunction);
  FIND(cuLaunchKernel);
  FIND(cuStreamIsCapturing);
  FIND(cuMemcpyHtoDAsync_v2);
  FIND(cuMemcpyDtoDAsync_v2);
#undef FIND
  return nullptr;
}

}  // namespace

std::string OpenDriver(const char* library, Driver* driver) {
  const char* const name = *library ? library : kDriverLibrary;
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    return std::string("the NVIDIA driver cannot be loaded: ") + dlerror();
  }
  if (const char* const missing = Missing(handle, driver)) {
    return std::string("the NVIDIA driver is too old: ") + name + " lacks " +
           missing + "; CUDA 11 or later has it";
  }
  return Describe(*driver, "the NVIDIA driver cannot start", driver->cuInit(0));
}

std::string Describe(const Driver& driver, const char* what, Status status) {
  if (!status) return "";
  const char *name = nullptr, *text = nullptr;
  std::string described = std::string(what) + ": ";
  if (driver.cuGetErrorName(status, &name) || !name) {
    return described + "CUDA error " + std::to_string(status);
  }
  described += name;
  if (!driver.cuGetErrorString(status, &text) && text) {
    described += std::string(", ") + text;
  }
  return described;
}

}  // namespace gpu
}  // namespace terngrad
