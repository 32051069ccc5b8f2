// What the kernels share: ranges of a bucket, parts of variables, prefetching.
//
// Everything is static or a template of the lanes: see kernels_impl.h.

#ifndef TERNGRAD_CC_LIB_RANGES_IMPL_H_
#define TERNGRAD_CC_LIB_RANGES_IMPL_H_

#include <cstdint>

#include "terngrad/cc/lib/kernels.h"

namespace terngrad {

inline constexpr int kLanes = 16;
inline constexpr int64_t kAhead = 1024;  // values; from 512 on measured alike

static inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Calls visit(item, begin, end, offset) for the part [begin, end) of each item
// that lies in elements [first, last) of the bucket that concatenates the
// items; `offset` is the part's place in the bucket.
template <class Item, class Visit>
static inline void VisitItems(const Item* items, int64_t count, int64_t first,
                              int64_t last, Visit visit) {
  int64_t offset = 0;
  for (int64_t i = 0; i < count && offset < last; ++i) {
    const int64_t begin = Larger(first - offset, 0);
    const int64_t end = Smaller(last - offset, items[i].size);
    if (begin < end) visit(items[i], begin, end, offset + begin);
    offset += items[i].size;
  }
}

// Calls visit(part, begin, end) for the runs of values of one part in values
// [first, last) of a variable whose parts are not periodic.
template <class Visit>
static inline void VisitRuns(const Parts& parts, int64_t first, int64_t last,
                             Visit visit) {
  if (parts.count == 1) return visit(int64_t{0}, first, last);
  for (int64_t i = first; i < last;) {
    const int64_t run = (parts.first + i) / parts.block;
    const int64_t end = Smaller((run + 1) * parts.block - parts.first, last);
    visit(run % parts.count, i, end);
    i = end;
  }
}

// Numbers of a variable's parts, as vectors for 16 consecutive values: the
// same one, or those of periodic parts.
template <class Lanes>
class OneNumber {
 public:
  explicit OneNumber(float number) : lanes_(Lanes::Broadcast(number)) {}
  typename Lanes::Floats Next() { return lanes_; }

 private:
  typename Lanes::Floats lanes_;
};

// Returns the place of a value's number; `value` may be negative.
static inline int64_t PeriodicPart(const Parts& parts, int64_t value) {
  const int64_t part = (parts.first + value) % parts.count;
  return part < 0 ? part + parts.count : part;
}

template <class Lanes>
class PeriodicNumbers {
 public:
  // From value `first` of the variable on.
  PeriodicNumbers(const Parts& parts, const float* numbers, int64_t first)
      : numbers_(numbers),
        count_(parts.count),
        step_(kLanes % parts.count),
        part_(PeriodicPart(parts, first)) {}

  typename Lanes::Floats Next() {
    const auto numbers = Lanes::Load(numbers_ + part_);
    part_ += step_;
    if (part_ >= count_) part_ -= count_;
    return numbers;
  }

 private:
  const float* numbers_;
  int64_t count_, step_, part_;
};

// Prefetches values: the processor's own prefetching stops at each page and
// does not keep up. The address need not exist.
static inline void Prefetch(const float* values, int count,
                            int64_t ahead = kAhead) {
  const uintptr_t first =
      reinterpret_cast<uintptr_t>(values) + ahead * sizeof(float);
  for (int i = 0; i < count; i += kLanes) {
    __builtin_prefetch(
        reinterpret_cast<const void*>(first + i * sizeof(float)));
  }
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_RANGES_IMPL_H_
