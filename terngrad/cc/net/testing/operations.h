// Operations of a mesh, random inputs of them, and what these must give.

#ifndef TERNGRAD_CC_NET_TESTING_OPERATIONS_H_
#define TERNGRAD_CC_NET_TESTING_OPERATIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/net/mesh.h"

namespace terngrad {
namespace testing {

inline std::mt19937 generator(1);

// Draws are what takes longest with sanitizers: so many are made, then they
// repeat. No chunk has a multiple of them, so none equals the next.
inline constexpr int64_t kDraws = 1009;

// Copies the first `drawn` values over all that follow.
template <class T>
void Repeat(std::vector<T>* values, int64_t drawn = kDraws) {
  const int64_t count = values->size();
  for (int64_t i = drawn; i < count; i += drawn) {
    std::copy_n(values->begin(), std::min(drawn, count - i),
                values->begin() + i);
  }
}

inline std::vector<uint8_t> RandomOctets(int64_t octets) {
  std::vector<uint8_t> values(octets);
  for (int64_t i = 0; i < std::min(octets, kDraws); ++i) {
    values[i] = generator();
  }
  Repeat(&values);
  return values;
}

inline std::vector<uint8_t> RandomFloats(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (int64_t i = 0; i < std::min(count, kDraws); ++i) {
    values[i] = normal(generator);
  }
  Repeat(&values);
  std::vector<uint8_t> octets(4 * count);
  if (count) std::memcpy(octets.data(), values.data(), octets.size());
  return octets;
}

inline Declaration Bytes(const std::string& name, Kind kind, int64_t rows) {
  return {name, kind, rows};
}

// Codes up to `max_code` in magnitude, of `size` processes.
inline Declaration Codes(const std::string& name, int64_t rows, int max_code,
                         int size) {
  return {name, Kind::kCodes, rows, max_code, max_code * size, FindKernels("")};
}

// Rows of codes up to `max_code` in magnitude; a share of about `zeros` is 0,
// and of the rest each code has the same chance.
inline std::vector<uint8_t> RandomCodes(int64_t rows, int max_code,
                                        double zeros = 0) {
  const int planes = PlaneCount(max_code);
  std::bernoulli_distribution is_zero(zeros);
  std::vector<uint32_t> words(rows * planes);
  for (int64_t i = 0; i < std::min(rows, kDraws) * 32; ++i) {
    const int drawn = static_cast<int>(generator() % (2 * max_code + 1));
    const uint32_t code = is_zero(generator) ? 0 : drawn - max_code;
    for (int j = 0; j < planes; ++j) {
      words[i / 32 * planes + j] |= (code >> j & 1) << i % 32;
    }
  }
  Repeat(&words, kDraws * planes);
  std::vector<uint8_t> octets(4 * words.size());
  if (rows) std::memcpy(octets.data(), words.data(), octets.size());
  return octets;
}

inline std::vector<uint8_t> RandomInput(const Plan& plan) {
  const Declaration& declaration = plan.declaration();
  if (declaration.kind == Kind::kFloats || declaration.kind == Kind::kMaxima) {
    return RandomFloats(declaration.rows);
  }
  if (HasCodes(declaration.kind)) {
    const int64_t row = 4 * declaration.planes_in();
    return RandomCodes(plan.InputBytes() / row, declaration.largest_in);
  }
  return RandomOctets(plan.InputBytes());
}

using Buffers = std::vector<std::vector<uint8_t>>;

// Returns what each process must get.
inline Buffers Expected(const Plan& plan, const Buffers& inputs) {
  const int size = inputs.size();
  const int64_t rows = plan.declaration().rows;
  std::vector<uint8_t> same(plan.OutputBytes());
  Buffers expected;
  std::vector<const uint8_t*> parts;
  for (const auto& input : inputs) parts.push_back(input.data());
  for (int i = 0; i < size; ++i) {
    switch (plan.declaration().kind) {
      case Kind::kBroadcast:
        same = inputs[0];
        break;
      case Kind::kGather:
      case Kind::kAllToAll:
        for (int j = 0; j < size; ++j) {
          const bool all = plan.declaration().kind == Kind::kAllToAll;
          std::copy_n(inputs[j].begin() + (all ? i * rows : 0), rows,
                      same.begin() + j * rows);
        }
        break;
      case Kind::kScatterCodes: {
        std::vector<uint8_t> sums(rows * plan.RowBytes(1));
        plan.Add(parts, rows, sums.data());
        const Range share = plan.Added(i);
        same.assign(plan.OutputBytes(), 0);
        std::copy(sums.begin() + share.begin * plan.RowBytes(1),
                  sums.begin() + share.end * plan.RowBytes(1), same.begin());
        break;
      }
      case Kind::kGatherCodes:
        for (int j = 0; j < size; ++j) {
          const Range share = plan.Sent(0, j, i);
          std::copy_n(inputs[j].begin(),
                      (share.end - share.begin) * plan.RowBytes(0),
                      same.begin() + share.begin * plan.RowBytes(0));
        }
        break;
      default:
        plan.Add(parts, rows, same.data());
    }
    expected.push_back(same);
  }
  return expected;
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_TESTING_OPERATIONS_H_
