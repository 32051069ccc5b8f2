// Ternary codes on their way to another process: five codes in eight bits, so
// 1.6 bits a value instead of 2. Arithmetic on bit planes, as the sums are,
// which every instruction set does for whole vectors.

#ifndef TERNGRAD_CC_LIB_BASE3_IMPL_H_
#define TERNGRAD_CC_LIB_BASE3_IMPL_H_

#include <cstdint>
#include <cstring>

#include "terngrad/cc/lib/kernels.h"

namespace terngrad {

inline constexpr int kBase3Run = 16;    // rows that are handled at once
inline constexpr int kBase3Planes = 8;  // of five digits

// A word of each row of a run.
typedef uint32_t RunWords __attribute__((vector_size(4 * kBase3Run)));

// A ternary digit of each value of a run: 0, 1 or -1.
struct RunDigits {
  RunWords nonzero;
  RunWords negative;
};

// Reads `count` rows of PLANES words, each plane's words side by side.
template <int PLANES>
static inline void LoadRun(const uint32_t* words, int64_t count,
                           RunWords (&planes)[PLANES]) {
  uint32_t lanes[PLANES][kBase3Run] = {};
  for (int64_t g = 0; g < count; ++g) {
    for (int j = 0; j < PLANES; ++j) lanes[j][g] = words[g * PLANES + j];
  }
  std::memcpy(planes, lanes, sizeof(lanes));
}

template <int PLANES>
static inline void StoreRun(const RunWords (&planes)[PLANES], int64_t count,
                            uint32_t* words) {
  uint32_t lanes[PLANES][kBase3Run];
  std::memcpy(lanes, planes, sizeof(lanes));
  for (int64_t g = 0; g < count; ++g) {
    for (int j = 0; j < PLANES; ++j) words[g * PLANES + j] = lanes[j][g];
  }
}

// Integers as DIGITS digits, the lowest first.
template <class Lanes, int DIGITS>
struct Digits;

// A code is a digit.
template <class Lanes>
struct Digits<Lanes, 1> {
  static constexpr int kPlanes = 2;

  static void Split(const RunWords (&planes)[2], RunDigits (&digits)[1]) {
    digits[0] = {planes[0], planes[1]};
  }
  static void Join(const RunDigits (&digits)[1], RunWords (&planes)[2]) {
    planes[0] = digits[0].nonzero;
    planes[1] = digits[0].negative;
  }
};

// Sums from -4 to 4 are low + 3 high.
template <class Lanes>
struct Digits<Lanes, 2> {
  static constexpr int kPlanes = 4;

  static void Split(const RunWords (&planes)[4], RunDigits (&digits)[2]) {
    const RunWords ones = planes[0], twos = planes[1], sign = planes[3];
    const RunWords high =
        (sign & ~(twos & ones)) | (~sign & (twos | planes[2]));
    const RunWords low = ones ^ high;
    digits[0] = {low, low & ((sign & ~(twos ^ ones)) | (~sign & twos))};
    digits[1] = {high, sign & high};
  }
  static void Join(const RunDigits (&digits)[2], RunWords (&planes)[4]) {
    const RunDigits low = digits[0], high = digits[1];
    const RunWords plus_1 = low.nonzero & ~low.negative;
    const RunWords plus_3 = high.nonzero & ~high.negative;
    const RunWords minus_1_alone = low.negative & ~high.nonzero;
    const RunWords sign = high.negative | minus_1_alone;
    planes[0] = low.nonzero ^ high.nonzero;
    planes[1] = (plus_3 & ~plus_1) | minus_1_alone | (high.negative & plus_1);
    planes[2] = sign | (plus_3 & plus_1);
    planes[3] = sign;
  }
};

// x = 3 x + digit, where -1 counts as 2 and x grows from FROM to TO bits.
template <int FROM, int TO>
static inline void Append(const RunDigits& digit, RunWords (&x)[kBase3Planes]) {
  // One addition: x + (2 x + 1 if negative) + (1 if nonzero).
  RunWords carry = digit.nonzero, doubled = digit.negative;
  for (int j = 0; j < TO; ++j) {
    const RunWords own = j < FROM ? x[j] : RunWords{};
    const RunWords differ = own ^ doubled;
    x[j] = differ ^ carry;
    carry = (own & doubled) | (differ & carry);
    doubled = own;
  }
}

// Subtracts POWER where x, of BITS bits, is at least that.
template <int BITS, int POWER>
static inline void Subtract(RunWords (&x)[kBase3Planes], RunWords& where) {
  RunWords below = {};
  for (int j = 0; j < BITS; ++j) {
    below = POWER >> j & 1 ? below | ~x[j] : below & ~x[j];
  }
  where = ~below;
  RunWords borrow = {};
  for (int j = 0; j < BITS; ++j) {
    const RunWords own = x[j];
    if (POWER >> j & 1) {
      x[j] = own ^ where ^ borrow;
      borrow = (~own & (where | borrow)) | (where & borrow);
    } else {
      x[j] = own ^ borrow;
      borrow = ~own & borrow;
    }
  }
}

// Takes the digit of POWER off x.
template <int BITS, int POWER>
static inline void Take(RunWords (&x)[kBase3Planes], RunDigits& digit) {
  Subtract<BITS, POWER>(x, digit.nonzero);
  Subtract<BITS, POWER>(x, digit.negative);
}

// Packs five runs of rows at once. Functions are static or belong to a template
// of the lanes: see kernels_impl.h.
template <class Lanes, int DIGITS>
struct Base3Kernel {
  using Form = Digits<Lanes, DIGITS>;

  static void Pack(const uint32_t* words, int64_t rows, uint8_t* packed) {
    int64_t run;
    for (; (run = RunOf(rows)) > 0; rows -= kBase3Rows * run) {
      RunDigits digits[kBase3Rows][DIGITS];
      for (auto& row : digits) {
        RunWords planes[Form::kPlanes];
        LoadRun(words, run, planes);
        Form::Split(planes, row);
        words += run * Form::kPlanes;
      }
      for (int d = 0; d < DIGITS; ++d) {
        RunWords x[kBase3Planes];
        Append<0, 2>(digits[4][d], x);
        Append<2, 4>(digits[3][d], x);
        Append<4, 5>(digits[2][d], x);
        Append<5, 7>(digits[1][d], x);
        Append<7, 8>(digits[0][d], x);
        for (const RunWords& plane : x) {
          std::memcpy(packed, &plane, run * sizeof(uint32_t));
          packed += run * sizeof(uint32_t);
        }
      }
    }
    CopyRest(words, rows, packed);
  }

  // Numbers above 242, which Pack does not write, give digits all the same.
  static void Unpack(const uint8_t* packed, int64_t rows, uint32_t* words) {
    int64_t run;
    for (; (run = RunOf(rows)) > 0; rows -= kBase3Rows * run) {
      RunDigits digits[kBase3Rows][DIGITS];
      for (int d = 0; d < DIGITS; ++d) {
        RunWords x[kBase3Planes] = {};
        for (RunWords& plane : x) {
          std::memcpy(&plane, packed, run * sizeof(uint32_t));
          packed += run * sizeof(uint32_t);
        }
        Take<8, 81>(x, digits[4][d]);
        Take<7, 27>(x, digits[3][d]);
        Take<5, 9>(x, digits[2][d]);
        Take<4, 3>(x, digits[1][d]);
        digits[0][d] = {x[0] | x[1], x[1]};
      }
      for (const auto& row : digits) {
        RunWords planes[Form::kPlanes];
        Form::Join(row, planes);
        StoreRun(planes, run, words);
        words += run * Form::kPlanes;
      }
    }
    CopyRest(packed, rows, words);
  }

 private:
  // The last rows keep their planes. Without any, the pointers may be null.
  static void CopyRest(const void* from, int64_t rows, void* to) {
    if (rows) std::memcpy(to, from, rows * Form::kPlanes * sizeof(uint32_t));
  }

  static int64_t RunOf(int64_t rows) {
    const int64_t run = rows / kBase3Rows;
    return run < kBase3Run ? run : kBase3Run;
  }
};

template <class Lanes>
void PackBase3(const uint32_t* words, int digits, int64_t rows,
               uint8_t* packed) {
  return digits == 1 ? Base3Kernel<Lanes, 1>::Pack(words, rows, packed)
                     : Base3Kernel<Lanes, 2>::Pack(words, rows, packed);
}

template <class Lanes>
void UnpackBase3(const uint8_t* packed, int digits, int64_t rows,
                 uint32_t* words) {
  return digits == 1 ? Base3Kernel<Lanes, 1>::Unpack(packed, rows, words)
                     : Base3Kernel<Lanes, 2>::Unpack(packed, rows, words);
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_BASE3_IMPL_H_
