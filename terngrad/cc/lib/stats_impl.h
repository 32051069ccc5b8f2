// Kernels of statistics.
//
// Everything is static or a template of the lanes: see kernels_impl.h.

#ifndef TERNGRAD_CC_LIB_STATS_IMPL_H_
#define TERNGRAD_CC_LIB_STATS_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/ranges_impl.h"

namespace terngrad {

// Sums 64 interleaved sequences: vectors of any width give the same bits.
template <class Lanes>
struct StatsKernel {
  using Floats = typename Lanes::Floats;
  using Words = typename Lanes::Words;
  static constexpr int kRows = 4;  // independent sums hide the add's latency

  static BlockStats Run(const float* values, int64_t count) {
    Floats sum[kRows], squares[kRows];
    Words largest[kRows];
    for (int r = 0; r < kRows; ++r) {
      sum[r] = squares[r] = Lanes::Broadcast(0.0f);
      largest[r] = Lanes::Zeros();
    }
    const auto add = [&](const float* row_values) {
      Prefetch(row_values, kRows * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Floats x = Lanes::Load(row_values + r * kLanes);
        sum[r] = Lanes::Add(sum[r], x);
        squares[r] = Lanes::Add(squares[r], Lanes::Multiply(x, x));
        largest[r] = Lanes::Max(largest[r], Lanes::MagnitudeBits(x));
      }
    };
    int64_t i = 0;
    for (; i + kRows * kLanes <= count; i += kRows * kLanes) add(values + i);
    if (i < count) {
      float rest[kRows * kLanes] = {};
      std::memcpy(rest, values + i, (count - i) * sizeof(float));
      add(rest);
    }
    return {Total(sum), Total(squares), Largest(largest)};
  }

 private:
  static double Total(const Floats (&rows)[kRows]) {
    float lanes[kRows * kLanes];
    for (int r = 0; r < kRows; ++r) Lanes::Store(lanes + r * kLanes, rows[r]);
    double total = 0.0;
    for (float lane : lanes) total += lane;
    return total;
  }

  static uint32_t Largest(const Words (&rows)[kRows]) {
    uint32_t lanes[kRows * kLanes];
    for (int r = 0; r < kRows; ++r) {
      Lanes::StoreWords(lanes + r * kLanes, rows[r]);
    }
    uint32_t largest = 0;
    for (uint32_t lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
  }
};

// Reads each value once. The columns' sums stay in the first cache.
template <class Lanes>
struct ColumnStatsKernel {
  using Floats = typename Lanes::Floats;
  using Words = typename Lanes::Words;
  static constexpr int kRows = 8;  // values that are added before a sum is kept

  static void Run(const float* values, int64_t count, int64_t columns,
                  float* sums, float* squares, uint32_t* max_bits) {
    std::memset(sums, 0, columns * sizeof(float));
    std::memset(squares, 0, columns * sizeof(float));
    std::memset(max_bits, 0, columns * sizeof(uint32_t));
    const int64_t row = columns;
    for (; count >= kRows * row; count -= kRows * row, values += kRows * row) {
      Add<kRows>(values, columns, columns, sums, squares, max_bits);
    }
    for (; count > 0; count -= row, values += row) {
      Add<1>(values, columns, Smaller(count, columns), sums, squares, max_bits);
    }
  }

 private:
  // Returns how far ahead to prefetch: into the rows that are added next or, if
  // rows are long, further along the present ones.
  static int64_t Ahead(int64_t columns) {
    const int64_t group = kRows * columns;
    return group > 16 * kAhead ? kAhead : (kAhead + group - 1) / group * group;
  }

  // Adds the first `used` columns of ROWS rows.
  template <int ROWS>
  static void Add(const float* values, int64_t columns, int64_t used,
                  float* sums, float* squares, uint32_t* max_bits) {
    const int64_t ahead = Ahead(columns);
    int64_t c = 0;
    for (; c + kLanes <= used; c += kLanes) {
      Floats sum = Lanes::Load(sums + c), square = Lanes::Load(squares + c);
      Words largest = Lanes::LoadWords(max_bits + c);
      for (int r = 0; r < ROWS; ++r) {
        const float* const place = values + r * columns + c;
        Prefetch(place, kLanes, ahead);
        AddOne(Lanes::Load(place), &sum, &square, &largest);
      }
      Lanes::Store(sums + c, sum);
      Lanes::Store(squares + c, square);
      Lanes::StoreWords(max_bits + c, largest);
    }
    if (c == used) return;
    const int64_t size = (used - c) * sizeof(float);
    float rest[3][kLanes] = {};
    uint32_t bits[kLanes] = {};
    std::memcpy(rest[0], sums + c, size);
    std::memcpy(rest[1], squares + c, size);
    std::memcpy(bits, max_bits + c, size);
    Floats sum = Lanes::Load(rest[0]), square = Lanes::Load(rest[1]);
    Words largest = Lanes::LoadWords(bits);
    for (int r = 0; r < ROWS; ++r) {
      std::memcpy(rest[2], values + r * columns + c, size);
      AddOne(Lanes::Load(rest[2]), &sum, &square, &largest);
    }
    Lanes::Store(rest[0], sum);
    Lanes::Store(rest[1], square);
    Lanes::StoreWords(bits, largest);
    std::memcpy(sums + c, rest[0], size);
    std::memcpy(squares + c, rest[1], size);
    std::memcpy(max_bits + c, bits, size);
  }

  static void AddOne(Floats x, Floats* sum, Floats* square, Words* largest) {
    *sum = Lanes::Add(*sum, x);
    *square = Lanes::Add(*square, Lanes::Multiply(x, x));
    *largest = Lanes::Max(*largest, Lanes::MagnitudeBits(x));
  }
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_STATS_IMPL_H_
