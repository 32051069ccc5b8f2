#include "terngrad/cc/lib/kernels.h"

#include <cstring>

namespace terngrad {
namespace {

#if defined(__x86_64__)
// The instruction sets that build.py compiles each path for.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#else
bool HasAvx512() { return false; }
bool HasAvx2() { return false; }
#endif

}  // namespace

const Kernels* FindKernels(const char* path) {
  const Kernels* const paths[] = {HasAvx512() ? Avx512Kernels() : nullptr,
                                  HasAvx2() ? Avx2Kernels() : nullptr,
                                  PortableKernels()};
  for (const Kernels* kernels : paths) {
    if (kernels && (!*path || !std::strcmp(path, kernels->path))) {
      return kernels;
    }
  }
  return nullptr;
}

const char* SupportedPaths() {
  if (HasAvx512()) return "avx512, avx2, portable";
  return HasAvx2() ? "avx2, portable" : "portable";
}

const Encoder* FindEncoder(const Kernels& kernels, const char* name) {
  const Encoder* encoder = kernels.encoders;
  while (encoder->name && std::strcmp(name, encoder->name)) ++encoder;
  return encoder->name ? encoder : nullptr;
}

}  // namespace terngrad
