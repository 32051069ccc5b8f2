// TernGrad's arithmetic on arrays: statistics, ternary codes, their sums and
// means. Nothing here needs TensorFlow, allocates memory or starts a thread.
//
// A bucket of M elements is stored as bit planes (terngrad/planes.py):
// for each 32 elements k words, word j holding bit j of each element in two's
// complement. Codes -1, 0, +1 have k = 2, sums over N nodes
// k = ceil(log2(2 N + 1)). All functions work on a range of words, so that
// threads can share a bucket without sharing a word.

#ifndef TERNGRAD_CC_LIB_KERNELS_H_
#define TERNGRAD_CC_LIB_KERNELS_H_

#include <cstdint>

#include "terngrad/cc/lib/types.h"

namespace terngrad {

// What a sum of 1 stands for, in each part of a variable: PaddedCount values.
struct Units {
  Parts parts;
  const float* values;
};

// A variable's gradient and how to encode it.
struct Source {
  const float* values;
  int64_t size;
  int64_t first;      // index of values[0] in the variable, for its draws
  uint32_t variable;  // index of the variable, < 2^16
  Parts parts;
  // PaddedCount numbers each:
  const float* bounds;  // magnitudes to clip to; infinity = no clipping
  const float* rates;   // see RateOf
};

// Memory for a variable's mean gradient.
struct Target {
  float* values;
  int64_t size;
  Units units;
};

// A variable's values and memory for the rounding error.
struct Kept {
  const float* values;
  float* residuals;  // may be the values' memory
  int64_t size;
  Units units;
};

// A variable that is trained: its weights, what a rule keeps for each, and
// their moving averages.
struct Trained {
  float* weights;
  float* slots[2];  // the first SlotCount(rule) count
  float* averages;  // null if there are none
  int64_t size;
  Units units;
};

// A way in which values become codes.
struct Encoder {
  const char* name;
  int max_code;  // largest magnitude of a code

  // Writes words [k begin, k end), k = PlaneCount(max_code), of the bucket that
  // concatenates `sources`: the codes of its elements [32 begin, 32 end).
  // Elements after the last source are 0.
  void (*encode)(const Source* sources, int64_t source_count,
                 const NodeKey& key, int64_t begin, int64_t end,
                 uint32_t* words);
};

// One implementation of all functions. All implementations give the same bits.
struct Kernels {
  const char* path;  // "avx512", "avx2" or "portable"

  // count <= kStatsBlock.
  BlockStats (*stats)(const float* values, int64_t count);

  // Statistics of each column of a matrix of `columns` columns, whose last row
  // may be short: the sums of its at most kStatsRows values in their order, the
  // sums of their squares, and the largest bits, as in BlockStats.
  void (*column_stats)(const float* values, int64_t count, int64_t columns,
                       float* sums, float* squares, uint32_t* max_bits);

  // Writes a + b, to their memory or another.
  void (*add)(const float* a, const float* b, int64_t count, float* sums);

  const Encoder* encoders;  // the last one has no name

  // Writes words [planes begin, planes end) of the sum of `inputs`, modulo
  // 2^planes. 1 <= planes <= kMaxPlanes, also for each input.
  void (*sum)(const Planes* inputs, int64_t input_count, int planes,
              int64_t begin, int64_t end, uint32_t* total);

  // Writes unit * value for elements [32 begin, 32 end) of the bucket that
  // concatenates `targets`. Targets of kStreamedSize values or more are written
  // past the caches.
  void (*decode)(const Planes& sums, const Target* targets,
                 int64_t target_count, int64_t begin, int64_t end);

  // Writes value - unit * code for elements [32 begin, 32 end) of the bucket
  // that concatenates `variables`.
  void (*subtract)(const Planes& codes, const Kept* variables,
                   int64_t variable_count, int64_t begin, int64_t end);

  // Updates elements [32 begin, 32 end) of the bucket that concatenates
  // `variables` with their mean gradients, the values that `decode` writes.
  // Each operation of the rule rounds.
  void (*update)(const Planes& sums, const Trained* variables,
                 int64_t variable_count, const Update& update, int64_t begin,
                 int64_t end);

  // Writes integers in [-largest, largest] in the prefix code of
  // terngrad/prefix_code.py, 1 <= largest <= kMaxSum, and returns its bytes:
  // at most those of their PlaneCount(largest) planes.
  int64_t (*pack)(const uint32_t* words, int largest, int64_t rows,
                  uint8_t* packed);

  // The inverse. Returns false if `packed` is no code of so many rows. A
  // payload of the size of the planes is the planes, whatever they are; any
  // shorter one gives integers in [-largest, largest].
  bool (*unpack)(const uint8_t* packed, int64_t size, int largest, int64_t rows,
                 uint32_t* words);
};

// Returns the kernels of a path, or the fastest for an empty path; null if the
// path is unknown, not in this build or not supported by this CPU.
const Kernels* FindKernels(const char* path);

// Returns the paths that FindKernels finds here, separated by ", ", fastest
// first.
const char* SupportedPaths();

// Returns the encoder of a name; null if it is unknown.
const Encoder* FindEncoder(const Kernels& kernels, const char* name);

// For FindKernels: null if the build does not have the path.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();
const Kernels* PortableKernels();

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_KERNELS_H_
