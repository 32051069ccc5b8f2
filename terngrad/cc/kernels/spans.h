// Names of what TensorBoard's profiler shows of an exchange.

#ifndef TERNGRAD_CC_KERNELS_SPANS_H_
#define TERNGRAD_CC_KERNELS_SPANS_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "tsl/profiler/lib/traceme.h"

namespace terngrad {

// Returns the name of a span, OPERATION:KIND, by which the profiler groups
// them. The fingerprint of a layout, with which the names of operations on
// gradients begin, is left out, as in begin_span of terngrad/exchange.
inline std::string SpanName(const std::string& operation, const char* kind) {
  constexpr size_t kDigits = 32;
  const bool begins_with_fingerprint =
      operation.find('/') == kDigits &&
      operation.find_first_not_of("0123456789abcdef") == kDigits;
  return absl::StrCat(
      operation.substr(begins_with_fingerprint ? kDigits + 1 : 0), ":", kind);
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_SPANS_H_
