// The functions of the CUDA driver that launches need, found while the program
// runs. So no CUDA header is needed to build, and no driver to run on CPUs.

#ifndef TERNGRAD_CC_GPU_DRIVER_H_
#define TERNGRAD_CC_GPU_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace terngrad {
namespace gpu {

inline constexpr char kDriverLibrary[] = "libcuda.so.1";

using Status = int;        // CUresult; 0 = success
using Address = uint64_t;  // CUdeviceptr: of device memory
using Stream = void*;      // CUstream; null is the default one

// Numbers of CUdevice_attribute.
inline constexpr int kCapabilityMajor = 75;
inline constexpr int kCapabilityMinor = 76;

inline constexpr int kNotCapturing = 0;  // of CUstreamCaptureStatus

// Of CUDA 11 and later. `void*` stands for the driver's own types.
struct Driver {
  Status (*cuInit)(unsigned flags);
  Status (*cuDriverGetVersion)(int* version);
  Status (*cuGetErrorName)(Status status, const char** name);
  Status (*cuGetErrorString)(Status status, const char** text);
  Status (*cuDeviceGet)(int* device, int ordinal);
  Status (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  Status (*cuDevicePrimaryCtxRetain)(void** context, int device);
  Status (*cuDevicePrimaryCtxRelease_v2)(int device);
  Status (*cuCtxPushCurrent_v2)(void* context);
  Status (*cuCtxPopCurrent_v2)(void** context);
  Status (*cuModuleLoadData)(void** module, const void* code);
  Status (*cuModuleUnload)(void* module);
  Status (*cuModuleGetFunction)(void** function, void* module,
                                const char* name);
  Status (*cuLaunchKernel)(void* function, unsigned grid_x, unsigned grid_y,
                           unsigned grid_z, unsigned block_x, unsigned block_y,
                           unsigned block_z, unsigned shared_bytes,
                           Stream stream, void** arguments, void** extra);
  Status (*cuStreamIsCapturing)(Stream stream, int* status);
  Status (*cuMemcpyHtoDAsync_v2)(Address to, const void* from, size_t bytes,
                                 Stream stream);
  Status (*cuMemcpyDtoDAsync_v2)(Address to, Address from, size_t bytes,
                                 Stream stream);
};

// Finds a driver's functions in a library, by default kDriverLibrary, which
// stays loaded, and starts the driver. Returns why it cannot; "" if it can.
std::string OpenDriver(const char* library, Driver* driver);

// Returns "" for success, else what failed and why.
std::string Describe(const Driver& driver, const char* what, Status status);

}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_DRIVER_H_
