// The laws that mesh_test checks beside its own.

#ifndef TERNGRAD_CC_NET_TESTING_LAWS_H_
#define TERNGRAD_CC_NET_TESTING_LAWS_H_

#include <vector>

#include "terngrad/cc/lib/testing/checks.h"

namespace terngrad {
namespace testing {

using Laws = std::vector<Law<>>;

Laws ReduceLaws();      // reduce_test.cc
Laws BlockLaws();       // blocks_test.cc
Laws OperationLaws();   // mesh_operations_test.cc
Laws OfferLaws();       // offers_test.cc
Laws ConnectionLaws();  // connection_test.cc

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_TESTING_LAWS_H_
