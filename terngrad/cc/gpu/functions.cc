// Kernels for GPUs that Python calls (terngrad/gpu/device.py). Functions that
// return text return null, or why they failed: a text that lives until the
// thread's next call.

#include <memory>
#include <string>

#include "terngrad/cc/gpu/gpus.h"
#include "terngrad/cc/gpu/launch.h"

#define TERNGRAD_EXPORT extern "C" __attribute__((visibility("default")))

using terngrad::Planes;
using terngrad::gpu::Gpu;
using terngrad::gpu::Stream;

namespace {

const char* Text(std::string error) {
  static thread_local std::string kept;
  kept = std::move(error);
  return kept.empty() ? nullptr : kept.c_str();
}

}  // namespace

// Opens a device; see Gpu::Open.
TERNGRAD_EXPORT const char* terngrad_gpu_open(const char* library, int ordinal,
                                              Gpu** gpu) {
  std::unique_ptr<Gpu> opened;
  const char* const error = Text(Gpu::Open(library, ordinal, &opened));
  *gpu = opened.release();
  return error;
}

TERNGRAD_EXPORT void terngrad_gpu_close(Gpu* gpu) { delete gpu; }

// Hands a GPU over to TensorFlow's ops; see RegisterGpu.
TERNGRAD_EXPORT void terngrad_gpu_keep(Gpu* gpu, int ordinal) {
  terngrad::gpu::RegisterGpu(ordinal, std::unique_ptr<Gpu>(gpu));
}

TERNGRAD_EXPORT int terngrad_gpu_capability(const Gpu* gpu) {
  return gpu->capability();
}

TERNGRAD_EXPORT const char* terngrad_gpu_load(Gpu* gpu, const void* code) {
  return Text(gpu->Load(code));
}

TERNGRAD_EXPORT const char* terngrad_gpu_upload(const Gpu* gpu,
                                                const void* from, int64_t bytes,
                                                void* to, Stream stream) {
  return Text(gpu->Upload(from, bytes, to, stream));
}

// The bytes of scratch memory that statistics take.
TERNGRAD_EXPORT int64_t terngrad_gpu_stats_bytes(
    const terngrad::gpu::Gradient* gradients, int64_t count) {
  return Gpu::StatsBytes(gradients, count);
}

// These launch kernels on a stream. The others' scratch memory has the size of
// their table, `count` items.

TERNGRAD_EXPORT const char* terngrad_gpu_stats(
    const Gpu* gpu, const terngrad::gpu::Gradient* gradients, int64_t count,
    float* sums, float* squares, float* max_abs, void* scratch, Stream stream) {
  return Text(
      gpu->Stats(gradients, count, sums, squares, max_abs, {stream, scratch}));
}

TERNGRAD_EXPORT const char* terngrad_gpu_encode(
    const Gpu* gpu, const char* encoder, const terngrad::gpu::Source* sources,
    int64_t count, const terngrad::NodeKey* key, int64_t rows, uint32_t* words,
    void* scratch, Stream stream) {
  return Text(gpu->Encode(encoder, sources, count, *key, rows, words,
                          {stream, scratch}));
}

TERNGRAD_EXPORT const char* terngrad_gpu_sum(const Gpu* gpu,
                                             const Planes* inputs,
                                             int64_t count, int planes,
                                             int64_t rows, uint32_t* total,
                                             void* scratch, Stream stream) {
  return Text(gpu->Sum(inputs, count, planes, rows, total, {stream, scratch}));
}

TERNGRAD_EXPORT const char* terngrad_gpu_decode(
    const Gpu* gpu, const Planes* sums, const terngrad::gpu::Target* targets,
    int64_t count, const terngrad::gpu::UnitRule* units, int64_t rows,
    void* scratch, Stream stream) {
  return Text(
      gpu->Decode(*sums, targets, count, *units, rows, {stream, scratch}));
}

TERNGRAD_EXPORT const char* terngrad_gpu_subtract(
    const Gpu* gpu, const Planes* codes, const terngrad::gpu::Kept* variables,
    int64_t count, const terngrad::gpu::UnitRule* units, int64_t rows,
    void* scratch, Stream stream) {
  return Text(
      gpu->Subtract(*codes, variables, count, *units, rows, {stream, scratch}));
}

TERNGRAD_EXPORT const char* terngrad_gpu_update(
    const Gpu* gpu, const Planes* sums, const terngrad::gpu::Trained* variables,
    int64_t count, const terngrad::Update* update,
    const terngrad::gpu::UnitRule* units, int64_t rows, void* scratch,
    Stream stream) {
  return Text(gpu->ApplyUpdate(*sums, variables, count, *update, *units, rows,
                               {stream, scratch}));
}

TERNGRAD_EXPORT const char* terngrad_gpu_correct(
    const Gpu* gpu, const terngrad::gpu::Corrected* variables, int64_t count,
    int64_t rows, void* scratch, Stream stream) {
  return Text(gpu->Correct(variables, count, rows, {stream, scratch}));
}
