// The parts of a bucket's variables, as attributes of the ops, and the numbers
// of parts, as the kernels read them.

#ifndef TERNGRAD_CC_KERNELS_PARTS_H_
#define TERNGRAD_CC_KERNELS_PARTS_H_

#include <cstdint>
#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {

// The parts of each of a bucket's variables.
class PartsOfVariables {
 public:
  // Reads the attributes `n` and `parts`.
  explicit PartsOfVariables(tensorflow::OpKernelConstruction* context) {
    int n;
    std::vector<int64_t> given;
    OP_REQUIRES_OK(context, context->GetAttr("n", &n));
    OP_REQUIRES_OK(context, context->GetAttr("parts", &given));
    parts_.resize(n);
    total_ = n;
    if (given.empty()) return;
    OP_REQUIRES(context, given.size() == 3 * parts_.size(),
                Invalid("parts has ", given.size(),
                        " entries; allowed are 0 and 3 n = ", 3 * n));
    total_ = 0;
    for (int i = 0; i < n; ++i) {
      parts_[i] = {given[3 * i], given[3 * i + 1], given[3 * i + 2]};
      const Parts& parts = parts_[i];
      OP_REQUIRES(context,
                  parts.block >= 1 && parts.count >= 1 && parts.first >= 0,
                  Invalid("parts are ", parts.block, ", ", parts.count, ", ",
                          parts.first, "; allowed are 1, 1, 0 and more"));
      total_ += parts.count;
    }
  }

  const Parts& operator[](int i) const { return parts_[i]; }
  int64_t size() const { return parts_.size(); }

  // Of all variables, the length of vectors with a number for each part.
  int64_t total() const { return total_; }

 private:
  std::vector<Parts> parts_;
  int64_t total_ = 0;
};

// A number for each part of a bucket's variables, as the kernels read them.
class NumbersOfParts {
 public:
  NumbersOfParts() = default;

  // number(i) is that of the i-th of all parts.
  template <class Number>
  NumbersOfParts(const PartsOfVariables& parts, Number number) {
    int64_t first = 0;
    numbers_.reserve(parts.total() + kPartsPadding * parts.size());
    for (int64_t v = 0; v < parts.size(); ++v) {
      places_.push_back(numbers_.size());
      for (int64_t i = 0; i < PaddedCount(parts[v]); ++i) {
        numbers_.push_back(number(first + i % parts[v].count));
      }
      first += parts[v].count;
    }
  }

  // Returns those of a variable, of which there are PaddedCount.
  const float* operator[](int64_t variable) const {
    return numbers_.data() + places_[variable];
  }

 private:
  std::vector<float> numbers_;
  std::vector<int64_t> places_;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_PARTS_H_
