// The laws that kernels_test checks, of the kernels for GPUs.

#ifndef TERNGRAD_CC_GPU_TESTING_LAWS_H_
#define TERNGRAD_CC_GPU_TESTING_LAWS_H_

#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace gpu {
namespace testing {

using namespace ::terngrad::testing;  // checks and numbers, as on the CPU

// A law, and how often it is checked in one run.
struct RepeatedLaw {
  Law<Random&> law;
  int rounds;
};
using Laws = std::vector<RepeatedLaw>;

Laws ScalarLaws();      // scalars_test.cc
Laws EncodeLaws();      // encode_test.cc
Laws SumLaws();         // sum_test.cc
Laws MeanLaws();        // means_test.cc
Laws StatisticsLaws();  // statistics_test.cc

}  // namespace testing
}  // namespace gpu
}  // namespace terngrad

#endif  // TERNGRAD_CC_GPU_TESTING_LAWS_H_
