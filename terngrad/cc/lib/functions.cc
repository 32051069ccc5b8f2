// Kernels that Python calls without TensorFlow (terngrad/ops/library.py).
// Those of a bucket compute in the calling thread alone.

#include <algorithm>

#include "terngrad/cc/lib/flushing.h"
#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/statistics.h"

#define TERNGRAD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

bool IsPossible(int planes) {
  return planes >= 1 && planes <= terngrad::kMaxPlanes;
}

bool IsPacked(int largest) {
  return largest >= 1 && largest <= terngrad::kMaxSum;
}

bool ArePossible(const terngrad::Planes* inputs, int64_t count, int planes) {
  return IsPossible(planes) &&
         std::all_of(inputs, inputs + count, [](const terngrad::Planes& input) {
           return IsPossible(input.planes);
         });
}

}  // namespace

// Returns SupportedPaths().
TERNGRAD_EXPORT const char* terngrad_paths() {
  return terngrad::SupportedPaths();
}

// Writes sums, sums of squares and largest magnitudes of the parts of a
// variable of `size` values, as the op TerngradStats does. Returns false and
// does nothing if FindKernels does not know `path`.
TERNGRAD_EXPORT bool terngrad_stats(const char* path, const float* values,
                                    int64_t size, const terngrad::Parts* parts,
                                    float* sums, float* squares,
                                    float* max_abs) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels) return false;
  const terngrad::Flushing flushing(true);
  terngrad::Statistics statistics(*kernels, values, size, *parts);
  for (int64_t i = 0; i < statistics.pieces(); ++i) statistics.Measure(i);
  statistics.Write(0, parts->count, sums, squares, max_abs);
  return true;
}

// Writes words[planes * rows], the codes of the bucket that concatenates
// `sources`. Returns false and does nothing if FindKernels does not know `path`
// or FindEncoder not `name`.
TERNGRAD_EXPORT bool terngrad_encode(const char* path, const char* name,
                                     const terngrad::Source* sources,
                                     int64_t count,
                                     const terngrad::NodeKey* key, int64_t rows,
                                     uint32_t* words) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels) return false;
  const auto* const encoder = terngrad::FindEncoder(*kernels, name);
  if (!encoder) return false;
  const terngrad::Flushing flushing(true);
  encoder->encode(sources, count, *key, 0, rows, words);
  return true;
}

// Writes the sum of `count` buckets of `rows` words per plane, modulo 2^planes,
// to total[rows * planes]. Returns false and does nothing if FindKernels does
// not know `path` or a number of planes is out of range.
TERNGRAD_EXPORT bool terngrad_sum(const char* path,
                                  const terngrad::Planes* inputs, int64_t count,
                                  int planes, int64_t rows, uint32_t* total) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels || !ArePossible(inputs, count, planes)) return false;
  kernels->sum(inputs, count, planes, 0, rows, total);
  return true;
}

// Writes integers in [-largest, largest] in the prefix code to packed, which
// takes their rows * PlaneCount(largest) words, and returns its bytes. Returns
// -1 and does nothing if FindKernels does not know `path` or `largest` is out
// of range.
TERNGRAD_EXPORT int64_t terngrad_pack(const char* path, const uint32_t* words,
                                      int largest, int64_t rows,
                                      uint8_t* packed) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels || !IsPacked(largest)) return -1;
  return kernels->pack(words, largest, rows, packed);
}

// The inverse. Returns false also if `packed` is no code of so many rows.
TERNGRAD_EXPORT bool terngrad_unpack(const char* path, const uint8_t* packed,
                                     int64_t size, int largest, int64_t rows,
                                     uint32_t* words) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels || !IsPacked(largest)) return false;
  return kernels->unpack(packed, size, largest, rows, words);
}

// Writes the values of the bucket that concatenates `targets`, of `rows` words
// per plane. Returns false and does nothing if FindKernels does not know `path`
// or the number of planes is out of range.
TERNGRAD_EXPORT bool terngrad_decode(const char* path,
                                     const terngrad::Planes* sums,
                                     const terngrad::Target* targets,
                                     int64_t count, int64_t rows) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels || !IsPossible(sums->planes)) return false;
  const terngrad::Flushing flushing(true);
  kernels->decode(*sums, targets, count, 0, rows);
  return true;
}

// Writes the rounding error of a bucket's codes. Returns false and does nothing
// as terngrad_decode does.
TERNGRAD_EXPORT bool terngrad_subtract(const char* path,
                                       const terngrad::Planes* codes,
                                       const terngrad::Kept* variables,
                                       int64_t count, int64_t rows) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels || !IsPossible(codes->planes)) return false;
  const terngrad::Flushing flushing(true);
  kernels->subtract(*codes, variables, count, 0, rows);
  return true;
}

// Updates the variables of a bucket. Returns false and does nothing as
// terngrad_decode does.
TERNGRAD_EXPORT bool terngrad_update(const char* path,
                                     const terngrad::Planes* sums,
                                     const terngrad::Trained* variables,
                                     int64_t count,
                                     const terngrad::Update* update,
                                     int64_t rows) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  if (!kernels || !IsPossible(sums->planes)) return false;
  const terngrad::Flushing flushing(true);
  kernels->update(*sums, variables, count, *update, 0, rows);
  return true;
}
