// kernels_test [ROUNDS]: checks that the kernels for GPUs, run on the host,
// have the bits of the portable ones, in so many times the usual number of
// rounds.
//
// Vectors get their exact size, so that the address sanitizer sees every access
// outside them.

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "terngrad/cc/gpu/testing/laws.h"
#include "terngrad/cc/lib/flushing.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/numbers.h"

int main(int argc, char** argv) {
  using namespace terngrad::gpu::testing;
  const int times = argc > 1 ? std::atoi(argv[1]) : 1;
  size_t count = 0;
  for (const Laws& laws :
       {ScalarLaws(), EncodeLaws(), SumLaws(), MeanLaws(), StatisticsLaws()}) {
    for (const auto& [law, rounds] : laws) {
      Random random(1);
      for (int i = 0; i < times * rounds; ++i) {
        const terngrad::Flushing flushing(i % 2 == 0);
        law.Check(random);
      }
    }
    count += laws.size();
  }
  std::printf("%zu laws, %lld numbers\n", count,
              static_cast<long long>(compared));
  return 0;
}
