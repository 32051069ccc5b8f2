// The plan of an operation: which process sends which rows to whom, and which
// rows it adds.

#ifndef TERNGRAD_CC_NET_PLAN_H_
#define TERNGRAD_CC_NET_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/net/frames.h"

namespace terngrad {

// P processes; all sizes in rows.
enum class Kind : uint8_t {
  kGather = 1,  // [n] -> [P, n]; a row is a byte
  kAllToAll,    // [P, n] -> [P, n]; a row is a byte
  kBroadcast,   // [n] of process 0 -> [n]; a row is a byte
  kCodes,       // [n] -> sums [n]; a row has a word for each plane
  kFloats,      // [n] -> sums [n]; a row is a float
  // The two halves of kCodes: sums for the owner of each share, [n] -> [s], and
  // codes from the owners to all, [s] -> [n], with s rows in the largest share.
  kScatterCodes,
  kGatherCodes,
  kMaxima,  // [n] -> maxima [n]; a row is a float
  kHalves,  // [n] -> means [n], added as floats; a row is a float16
};

// Shares of kScatterCodes and kGatherCodes are multiples of so many rows; see
// SUM_BLOCK of terngrad/planes.py.
inline constexpr int64_t kShareRows = 32;

// Returns whether rows are codes, which travel in a prefix code.
inline bool HasCodes(Kind kind) {
  return kind == Kind::kCodes || kind == Kind::kScatterCodes ||
         kind == Kind::kGatherCodes;
}

// An operation, the same on all processes.
struct Declaration {
  std::string name;
  Kind kind = Kind::kGather;
  int64_t rows = 0;                  // n
  int64_t largest_in = 0;            // magnitude of a process' codes
  int64_t largest_out = 0;           // of their sums
  const Kernels* kernels = nullptr;  // add and pack codes

  int planes_in() const { return PlaneCount(largest_in); }
  int planes_out() const { return PlaneCount(largest_out); }
};

// Rows that one process sends to another, in chunks of `chunk_rows`. All but
// the last chunk are full.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t chunk_rows = 1;
  uint32_t chunks = 0;

  int64_t First(uint32_t chunk) const { return begin + chunk * chunk_rows; }
  int64_t Count(uint32_t chunk) const {
    const int64_t left = end - First(chunk);
    return left < chunk_rows ? left : chunk_rows;
  }
};

// The parts of an operation among `size` processes.
//
// Sums take one shot among two processes: each sends all rows and adds all.
// Among more, process i adds share i of the rows and sends the sums to all. So
// it is with maxima and means.
class Plan {
 public:
  Plan(const Declaration& declaration, int size);

  const Declaration& declaration() const { return declaration_; }
  bool reduces() const { return reduces_; }
  int shots() const { return shots_; }

  // The rows that `from` sends to `to`. Empty ones have no chunk, but in a
  // broadcast each process answers with an empty chunk, and process 0 sends one
  // if there are no rows, so that nobody can run ahead.
  Range Sent(int shot, int from, int to) const;

  // The rows that a process adds.
  Range Added(int rank) const;

  // The receivers of a process' chunks in shot 0: the others, from the next one
  // on, and itself if it adds rows that it does not send, or is alone.
  std::vector<int> Receivers(int rank) const;
  // Whether a process also adds the rows that it has for this receiver. In one
  // shot all get the same rows, which it adds once.
  bool IsAdded(int rank, int to) const {
    return to == (scatters() || size_ == 1 ? rank : (rank + 1) % size_);
  }

  // Bytes of a row in memory.
  int64_t RowBytes(int shot) const { return shot ? out_bytes_ : in_bytes_; }

  // Codes and their sums travel in a prefix code; see Kernels::pack. What is
  // packed has at most the bytes of its rows.
  bool IsPacked() const { return HasCodes(declaration_.kind); }
  int64_t Pack(int shot, const uint8_t* rows, int64_t count,
               uint8_t* packed) const {
    return declaration_.kernels->pack(reinterpret_cast<const uint32_t*>(rows),
                                      Largest(shot), count, packed);
  }
  bool Unpack(int shot, const uint8_t* packed, int64_t size, int64_t count,
              uint8_t* rows) const {
    return declaration_.kernels->unpack(packed, size, Largest(shot), count,
                                        reinterpret_cast<uint32_t*>(rows));
  }
  // Whether rows that are sent can have this size.
  bool IsSize(int shot, int64_t size, int64_t rows) const {
    const int64_t unpacked = rows * RowBytes(shot);
    return IsPacked() ? size <= unpacked : size == unpacked;
  }

  int64_t InputBytes() const;
  int64_t OutputBytes() const;

  // Returns the place in a process' input from which `to` gets its rows, where
  // those from row 0 on would be.
  int64_t InputOffset(int rank, int to) const;
  // Returns the place in the output of the rows that `from` sends, likewise.
  int64_t OutputOffset(int from) const;
  // Returns the place in a process' output of row 0 of the sums that it adds,
  // which is before the output where it holds a share only.
  int64_t SumsOffset(int rank) const;

  // Writes sums, maxima or means of `rows` rows; part i is that of process i.
  void Add(const std::vector<const uint8_t*>& parts, int64_t rows,
           uint8_t* total) const;

 private:
  int64_t Largest(int shot) const {
    return shot ? declaration_.largest_out : declaration_.largest_in;
  }
  Range Chunked(int64_t begin, int64_t end) const;
  Range Share(int i) const;
  int64_t ShareRows() const;
  // Whether process i adds share i only.
  bool scatters() const {
    return shots_ == 2 || declaration_.kind == Kind::kScatterCodes;
  }

  Declaration declaration_;
  int size_;
  bool reduces_;
  int shots_;
  int64_t in_bytes_;  // of a row
  int64_t out_bytes_;
  int64_t chunk_rows_;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_PLAN_H_
