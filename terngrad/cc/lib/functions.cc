// Kernels that Python calls without TensorFlow (terngrad/ops/native.py).

#include <algorithm>

#include "terngrad/cc/lib/kernels.h"

// Writes the sum of `count` buckets of `rows` words per plane, modulo 2^planes,
// to total[rows * planes]. Returns false and does nothing if FindKernels does
// not know `path` or a number of planes is out of range.
extern "C" __attribute__((visibility("default"))) bool terngrad_sum(
    const char* path, const terngrad::Planes* inputs, int64_t count, int planes,
    int64_t rows, uint32_t* total) {
  const terngrad::Kernels* const kernels = terngrad::FindKernels(path);
  const auto is_possible = [](int n) {
    return n >= 1 && n <= terngrad::kMaxPlanes;
  };
  const bool are_possible = std::all_of(
      inputs, inputs + count,
      [&](const terngrad::Planes& input) { return is_possible(input.planes); });
  if (!kernels || !is_possible(planes) || !are_possible) return false;
  kernels->sum(inputs, count, planes, 0, rows, total);
  return true;
}
