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

#include "terngrad/cc/lib/device.h"

namespace terngrad {

inline constexpr int kWordBits = 32;      // elements in a word
inline constexpr int kMaxSum = 65536;     // largest magnitude of a sum
inline constexpr int kMaxPlanes = 18;     // of such sums
inline constexpr int kStatsBlock = 4096;  // maximum of values per call of stats
inline constexpr int kStatsRows =
    64;  // maximum of rows per call of column_stats
inline constexpr int kPartsPadding = 15;  // see Parts
inline constexpr int64_t kStreamedSize =
    1 << 22;  // values of a target that no cache holds until they are used
inline constexpr float kSmallestNormal = 0x1p-126f;
inline constexpr float kSmallestScale =
    0x1p-100f;  // smaller values of a code of 1 count as 0

// Statistics of up to kStatsBlock values. Callers add the sums of blocks in the
// order of the blocks, so results do not depend on threads.
struct BlockStats {
  double sum;
  double sum_of_squares;
  uint32_t max_bits;  // largest bits of |x|; above infinity's if x has a NaN
};

// The parts of a variable (terngrad/parts.py): value e belongs to part
// ((first + e) / block) % count.
struct Parts {
  int64_t block = 1;
  int64_t count = 1;
  int64_t first = 0;
};

// Returns whether neighbours belong to different parts, such as output
// channels. Vectors read the numbers of such parts from any of them on: an
// array of them repeats the first kPartsPadding ones at its end.
TERNGRAD_DEVICE static inline bool IsPeriodic(const Parts& parts) {
  return parts.block == 1 && parts.count > 1;
}

// Returns the length of an array of the parts' numbers.
static inline int64_t PaddedCount(const Parts& parts) {
  return parts.count + (IsPeriodic(parts) ? kPartsPadding : 0);
}

// What a sum of 1 stands for, in each part of a variable: PaddedCount values.
struct Units {
  Parts parts;
  const float* values;
};

// Returns 2^16 / unit, unit being the value of a code of 1 where `scale` is
// that of the largest code; 0 if all codes are 0, because the unit is too small
// or not finite.
TERNGRAD_DEVICE static inline float RateOf(float scale, int max_code) {
  const float unit = scale * (1.0f / max_code);
  const bool is_usable = unit >= kSmallestScale && unit <= 0x1.fffffep127f;
  return is_usable ? 0x1p16f / unit : 0.0f;
}

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

// A variable's values and memory for what their codes do not say.
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

// How a mean gradient g changes a weight w and its slots v, or m and s, or s
// and v.
enum class Rule {
  kMomentum,       // v = momentum v + g; w = w - rate v
  kKerasMomentum,  // v = momentum v - rate g; w = w + v
  kNesterov,       // v = momentum v - rate g; w = w + (momentum v - rate g)
  kAdam,     // m = m + (g - m) mean_share; s = s + (g g - s) square_share;
             // w = w - m rate / (sqrt(s) + epsilon)
  kRmsProp,  // s = s + (g g - s) square_share;
             // v = momentum v + g rate / sqrt(s + epsilon); w = w - v
};

TERNGRAD_DEVICE static constexpr int SlotCount(Rule rule) {
  return rule == Rule::kAdam || rule == Rule::kRmsProp ? 2 : 1;
}

struct Update {
  Rule rule;
  float rate;
  float momentum;
  float mean_share;
  float square_share;
  float epsilon;
  float gain;  // an average a becomes (a + gain w) / (1 + gain), w updated
};

// Codes, or sums of codes, of a whole bucket.
struct Planes {
  const uint32_t* words;
  int planes;
};

// The seed, step and node of the draws.
struct NodeKey {
  uint64_t seed;
  uint32_t step;
  uint32_t node;    // < 2^16
  bool antithetic;  // nodes 2 k and 2 k + 1 share draws (terngrad/draws.py)
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

// Returns the number of planes of integers up to `largest` in magnitude.
TERNGRAD_DEVICE static constexpr int PlaneCount(int64_t largest) {
  int planes = 0;
  for (int64_t left = 2 * largest; left > 0; left /= 2) ++planes;
  return planes;
}

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
