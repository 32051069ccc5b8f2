// A driver of CUDA for tests: its only GPU is the host, whose memory is the
// device's. It runs kernels at once, by host_entries.h. Tests link it into a
// library, and tell it how to behave (fake_driver_set).

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "terngrad/cc/gpu/driver.h"
#include "terngrad/cc/gpu/testing/host_entries.h"
#include "terngrad/cc/lib/flushing.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using terngrad::gpu::Address;
using terngrad::gpu::Status;
using terngrad::gpu::Stream;

namespace {

constexpr Status kInvalidValue = 1;
constexpr Status kOutOfMemory = 2;
constexpr Status kInvalidDevice = 101;
constexpr Status kInvalidContext = 201;
constexpr Status kNotFound = 500;

// What tests set and read, by name: "capability", "version", "retained"
// contexts, "modules", "launches", "stream" of the last launch,
// "capturing", whether streams are being captured into a graph (0 or 1), and
// "failing NAME", the status that a function of that name returns.
class Numbers {
 public:
  int64_t Get(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return numbers_[name];
  }
  void Set(const std::string& name, int64_t value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    numbers_[name] = value;
  }
  void Add(const std::string& name, int64_t value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    numbers_[name] += value;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> numbers_{{"capability", 90},
                                          {"version", 12090}};
};

Numbers& TheNumbers() {
  static auto* const numbers = new Numbers;
  return *numbers;
}

// How often the context is current in this thread.
thread_local int64_t current = 0;

// Any use of the device needs its context to be current.
Status Failing(const char* function, bool needs_context) {
  const Status set = TheNumbers().Get(std::string("failing ") + function);
  if (set) return set;
  return needs_context && current == 0 ? kInvalidContext : 0;
}

char a_context, a_module;

}  // namespace

#define RETURN_IF_FAILING(needs_context) \
  if (const Status failing = Failing(__func__, needs_context)) return failing

EXPORT void fake_driver_set(const char* name, int64_t value) {
  TheNumbers().Set(name, value);
}

EXPORT int64_t fake_driver_get(const char* name) {
  return TheNumbers().Get(name);
}

// Returns how often the context is current in the calling thread.
EXPORT int64_t fake_driver_current() { return current; }

EXPORT Status cuInit(unsigned) {
  RETURN_IF_FAILING(false);
  return 0;
}

EXPORT Status cuDriverGetVersion(int* version) {
  *version = TheNumbers().Get("version");
  return 0;
}

EXPORT Status cuGetErrorName(Status status, const char** name) {
  *name = status == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == kInvalidDevice  ? "CUDA_ERROR_INVALID_DEVICE"
          : status == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT"
          : status == kNotFound       ? "CUDA_ERROR_NOT_FOUND"
                                      : nullptr;
  return *name ? 0 : kInvalidValue;
}

EXPORT Status cuGetErrorString(Status status, const char** text) {
  *text = status == kOutOfMemory ? "out of memory" : "some text";
  return 0;
}

EXPORT Status cuDeviceGet(int* device, int ordinal) {
  RETURN_IF_FAILING(false);
  if (ordinal != 0) return kInvalidDevice;
  *device = 0;
  return 0;
}

EXPORT Status cuDeviceGetAttribute(int* value, int attribute, int) {
  RETURN_IF_FAILING(false);
  switch (attribute) {
    case terngrad::gpu::kCapabilityMajor:
      *value = TheNumbers().Get("capability") / 10;
      return 0;
    case terngrad::gpu::kCapabilityMinor:
      *value = TheNumbers().Get("capability") % 10;
      return 0;
    default:
      return kInvalidValue;
  }
}

EXPORT Status cuDevicePrimaryCtxRetain(void** context, int) {
  RETURN_IF_FAILING(false);
  TheNumbers().Add("retained", 1);
  *context = &a_context;
  return 0;
}

EXPORT Status cuDevicePrimaryCtxRelease_v2(int) {
  TheNumbers().Add("retained", -1);
  return 0;
}

EXPORT Status cuCtxPushCurrent_v2(void* context) {
  RETURN_IF_FAILING(false);
  if (context != &a_context || TheNumbers().Get("retained") < 1) {
    return kInvalidContext;
  }
  ++current;
  return 0;
}

EXPORT Status cuCtxPopCurrent_v2(void** context) {
  RETURN_IF_FAILING(true);
  --current;
  *context = &a_context;
  return 0;
}

EXPORT Status cuModuleLoadData(void** module, const void*) {
  RETURN_IF_FAILING(true);
  TheNumbers().Add("modules", 1);
  *module = &a_module;
  return 0;
}

EXPORT Status cuModuleUnload(void*) {
  RETURN_IF_FAILING(true);
  TheNumbers().Add("modules", -1);
  return 0;
}

EXPORT Status cuModuleGetFunction(void** function, void* module,
                                  const char* name) {
  RETURN_IF_FAILING(true);
  if (module != &a_module) return kInvalidValue;
  *function = reinterpret_cast<void*>(terngrad::gpu::FindHostEntry(name));
  return *function ? 0 : kNotFound;
}

EXPORT Status cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                             unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, Stream stream,
                             void** arguments, void** extra) {
  RETURN_IF_FAILING(true);
  const bool is_usual = grid_x > 0 && grid_y == 1 && grid_z == 1 &&
                        block_x > 0 && block_x <= 1024 && block_y == 1 &&
                        block_z == 1 && shared_bytes == 0 && !extra;
  if (!is_usual) return kInvalidValue;
  TheNumbers().Add("launches", 1);
  TheNumbers().Set("stream", reinterpret_cast<int64_t>(stream));
  const terngrad::Flushing flushing(true);  // as NVRTC's --ftz=true
  reinterpret_cast<terngrad::gpu::HostEntry>(function)(arguments, grid_x,
                                                       block_x);
  return 0;
}

EXPORT Status cuStreamIsCapturing(Stream, int* status) {
  RETURN_IF_FAILING(true);
  *status = static_cast<int>(TheNumbers().Get("capturing"));
  return 0;
}

EXPORT Status cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes,
                                   Stream) {
  RETURN_IF_FAILING(true);
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}

EXPORT Status cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes,
                                   Stream) {
  RETURN_IF_FAILING(true);
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from),
              bytes);
  return 0;
}
