#include "terngrad/cc/net/reduce.h"

#include <algorithm>
#include <cstring>

namespace terngrad {
namespace {

constexpr int64_t kBlock = 512;  // floats of a part that stay in the cache
// In one shot, with fewer messages: such as losses, and scales.
constexpr int64_t kFewFloats = 8;
constexpr int64_t kFewMaxima = 256;

void AddPair(const float* a, const float* b, int64_t n, float* total) {
  for (int64_t i = 0; i < n; ++i) total[i] = a[i] + b[i];
}

// Adds the first n <= kBlock values; `scratch` holds half of the parts.
void TreeSumBlock(const std::vector<const float*>& parts, int64_t first,
                  int64_t n, float* scratch, float* total) {
  const size_t count = parts.size();
  for (size_t i = 0; i + 1 < count; i += 2) {
    AddPair(parts[i] + first, parts[i + 1] + first, n, scratch + i / 2 * n);
  }
  if (count % 2) {
    std::copy_n(parts.back() + first, n, scratch + count / 2 * n);
  }
  for (size_t left = (count + 1) / 2; left > 1; left = (left + 1) / 2) {
    for (size_t i = 0; i + 1 < left; i += 2) {
      AddPair(scratch + i * n, scratch + (i + 1) * n, n, scratch + i / 2 * n);
    }
    if (left % 2) {
      std::copy_n(scratch + (left - 1) * n, n, scratch + left / 2 * n);
    }
  }
  std::copy_n(scratch, n, total + first);
}

// A part that is not a number makes the result so.
void Maxima(const std::vector<const float*>& parts, int64_t n, float* largest) {
  std::copy_n(parts[0], n, largest);
  for (size_t part = 1; part < parts.size(); ++part) {
    for (int64_t i = 0; i < n; ++i) {
      const float a = largest[i], b = parts[part][i];
      largest[i] = a > b || a != a ? a : b;
    }
  }
}

void MeanOfHalves(const std::vector<const uint8_t*>& parts, int64_t n,
                  uint8_t* mean) {
  std::vector<float> wide(parts.size() * kBlock), total(kBlock);
  const float count = parts.size();
  std::vector<const float*> floats;
  for (size_t part = 0; part < parts.size(); ++part) {
    floats.push_back(wide.data() + part * kBlock);
  }
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t rows = std::min(kBlock, n - first);
    for (size_t part = 0; part < parts.size(); ++part) {
      for (int64_t i = 0; i < rows; ++i) {
        uint16_t half;
        std::memcpy(&half, parts[part] + 2 * (first + i), sizeof(half));
        wide[part * kBlock + i] = FloatOfHalf(half);
      }
    }
    TreeSum(floats, rows, total.data());
    for (int64_t i = 0; i < rows; ++i) {
      const uint16_t half = HalfOfFloat(total[i] / count);
      std::memcpy(mean + 2 * (first + i), &half, sizeof(half));
    }
  }
}

}  // namespace

float FloatOfHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31, fraction = half & 0x3ffu;
  uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
  if (exponent == 31) bits = sign | 0x7f800000u | fraction << 13;
  float value;
  if (exponent == 0) {  // fraction / 2^24, which a float has exactly
    value = static_cast<float>(fraction) / 16777216.0f;
    return sign ? -value : value;
  }
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t HalfOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint16_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;   // not a number
  if (bits >= 0x47800000u) return sign | 0x7c00u;  // 65536 or more
  // The fraction of a smaller number than 2^-14 has the unit 2^-24.
  const bool is_small = bits < 0x38800000u;
  const uint32_t exponent = bits >> 23;
  if (exponent < 102) return sign;  // below 2^-25
  const uint32_t shift = is_small ? 126 - exponent : 13;
  const uint32_t whole = is_small ? (bits & 0x7fffffu) | 0x800000u : bits;
  uint32_t rounded = whole >> shift;
  const uint32_t left = whole & ((1u << shift) - 1), tie = 1u << (shift - 1);
  if (left > tie || (left == tie && rounded & 1)) ++rounded;
  // 112 << 10: the difference of the exponents' biases.
  return sign | (is_small ? rounded : rounded - (112u << 10));
}

void TreeSum(const std::vector<const float*>& parts, int64_t n, float* total) {
  if (parts.size() == 2) {
    AddPair(parts[0], parts[1], n, total);
    return;
  }
  std::vector<float> scratch((parts.size() + 1) / 2 * kBlock);
  for (int64_t i = 0; i < n; i += kBlock) {
    TreeSumBlock(parts, i, std::min(kBlock, n - i), scratch.data(), total);
  }
}

Plan::Plan(const Declaration& declaration, int size)
    : declaration_(declaration), size_(size) {
  const Kind kind = declaration.kind;
  const bool codes = HasCodes(kind);
  const bool maxima = kind == Kind::kMaxima, halves = kind == Kind::kHalves;
  const bool for_all =
      kind == Kind::kCodes || kind == Kind::kFloats || maxima || halves;
  reduces_ = for_all || kind == Kind::kScatterCodes;
  const int64_t few_rows = maxima ? kFewMaxima : kFewFloats;
  const bool few = !codes && declaration.rows <= few_rows;
  shots_ = for_all && size > 2 && !few ? 2 : 1;
  in_bytes_ = codes      ? 4 * declaration.planes_in()
              : halves   ? 2
              : reduces_ ? 4
                         : 1;
  out_bytes_ = codes ? 4 * declaration.planes_out() : in_bytes_;
  // Multiples of these rows keep the vectors of all kernels full.
  constexpr int64_t kEven = 16;
  chunk_rows_ = kChunkBytes / std::max(in_bytes_, out_bytes_) / kEven * kEven;
}

Range Plan::Chunked(int64_t begin, int64_t end) const {
  const int64_t chunks = (end - begin + chunk_rows_ - 1) / chunk_rows_;
  return {begin, end, chunk_rows_, static_cast<uint32_t>(chunks)};
}

int64_t Plan::ShareRows() const {
  const Kind kind = declaration_.kind;
  const int64_t unit = HasCodes(kind) && kind != Kind::kCodes ? kShareRows : 1;
  return (declaration_.rows + unit * size_ - 1) / (unit * size_) * unit;
}

Range Plan::Share(int i) const {
  const int64_t share = ShareRows();
  const int64_t begin = std::min(i * share, declaration_.rows);
  return Chunked(begin, std::min(begin + share, declaration_.rows));
}

Range Plan::Sent(int shot, int from, int to) const {
  if (declaration_.kind == Kind::kBroadcast && from != 0) {
    Range answer = Chunked(0, 0);
    answer.chunks = to == 0;
    return answer;
  }
  if (declaration_.kind == Kind::kGatherCodes) return Share(from);
  if (!scatters()) return Chunked(0, declaration_.rows);
  return Share(shot ? from : to);
}

Range Plan::Added(int rank) const {
  if (!reduces_) return Chunked(0, 0);
  return scatters() ? Share(rank) : Chunked(0, declaration_.rows);
}

std::vector<int> Plan::Receivers(int rank) const {
  std::vector<int> receivers;
  for (int i = 1; i < size_; ++i) receivers.push_back((rank + i) % size_);
  if (scatters() || size_ == 1) receivers.push_back(rank);
  return receivers;
}

int64_t Plan::InputBytes() const {
  const bool all = declaration_.kind == Kind::kAllToAll;
  const bool share = declaration_.kind == Kind::kGatherCodes;
  return (all ? size_ : 1) * (share ? ShareRows() : declaration_.rows) *
         in_bytes_;
}

int64_t Plan::OutputBytes() const {
  const Kind kind = declaration_.kind;
  if (kind == Kind::kScatterCodes) return ShareRows() * out_bytes_;
  const bool many = kind == Kind::kGather || kind == Kind::kAllToAll;
  return (many ? size_ : 1) * declaration_.rows * out_bytes_;
}

int64_t Plan::InputOffset(int rank, int to) const {
  if (declaration_.kind == Kind::kGatherCodes) {
    return -Share(rank).begin * in_bytes_;
  }
  return declaration_.kind == Kind::kAllToAll ? to * declaration_.rows : 0;
}

int64_t Plan::OutputOffset(int from) const {
  const Kind kind = declaration_.kind;
  const bool many = kind == Kind::kGather || kind == Kind::kAllToAll;
  return many ? from * declaration_.rows : 0;
}

int64_t Plan::SumsOffset(int rank) const {
  const bool share = declaration_.kind == Kind::kScatterCodes;
  return share ? -Share(rank).begin * out_bytes_ : 0;
}

void Plan::Add(const std::vector<const uint8_t*>& parts, int64_t rows,
               uint8_t* total) const {
  if (HasCodes(declaration_.kind)) {
    std::vector<Planes> inputs;
    for (const uint8_t* part : parts) {
      inputs.push_back(
          {reinterpret_cast<const uint32_t*>(part), declaration_.planes_in()});
    }
    declaration_.kernels->sum(inputs.data(), inputs.size(),
                              declaration_.planes_out(), 0, rows,
                              reinterpret_cast<uint32_t*>(total));
    return;
  }
  if (declaration_.kind == Kind::kHalves) {
    MeanOfHalves(parts, rows, total);
    return;
  }
  std::vector<const float*> floats;
  for (const uint8_t* part : parts) {
    floats.push_back(reinterpret_cast<const float*>(part));
  }
  const bool maxima = declaration_.kind == Kind::kMaxima;
  (maxima ? Maxima : TreeSum)(floats, rows, reinterpret_cast<float*>(total));
}

}  // namespace terngrad
