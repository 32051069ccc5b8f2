#include "terngrad/cc/net/plan.h"

#include <algorithm>

#include "terngrad/cc/net/reduce.h"

namespace terngrad {
namespace {

// In one shot, with fewer messages: such as losses, and scales.
constexpr int64_t kFewFloats = 8;
constexpr int64_t kFewMaxima = 256;

}  // namespace

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
  if (declaration_.kind == Kind::kBroadcast) {
    Range range = Chunked(0, from == 0 ? declaration_.rows : 0);
    if (!range.chunks) range.chunks = from == 0 || to == 0;
    return range;
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
