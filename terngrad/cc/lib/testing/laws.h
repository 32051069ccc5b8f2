// The laws that kernels_test checks beside its own, of a path's kernels.

#ifndef TERNGRAD_CC_LIB_TESTING_LAWS_H_
#define TERNGRAD_CC_LIB_TESTING_LAWS_H_

#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/checks.h"

namespace terngrad {
namespace testing {

using Laws = std::vector<Law<const Kernels&>>;

Laws DrawLaws();        // draws_test.cc
Laws StatisticsLaws();  // statistics_test.cc
Laws EncodeLaws();      // encode_test.cc
Laws SumLaws();         // sum_test.cc
Laws DecodeLaws();      // decode_test.cc
Laws UpdateLaws();      // update_test.cc
Laws PrefixCodeLaws();  // prefix_code_test.cc

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_LAWS_H_
