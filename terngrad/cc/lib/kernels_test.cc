// kernels_test [PATH]: checks the laws of a path's kernels, or those of every
// path, without a framework. Exits with 77 if the build or this processor does
// not have the path.
//
// Vectors get their exact size, so that the address sanitizer sees every access
// outside them.

#include "terngrad/cc/lib/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/buckets.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"
#include "terngrad/cc/lib/testing/sums.h"
#include "terngrad/cc/lib/testing/targets.h"
#include "terngrad/cc/lib/testing/trained.h"

namespace terngrad {
namespace testing {
namespace {

constexpr int kSkip = 77;

void PathsAreFoundByTheirNames(const Kernels& kernels) {
  CHECK_SAME(std::string(FindKernels(kernels.path)->path),
             std::string(kernels.path));
  const std::string supported = SupportedPaths();
  CHECK_SAME(std::string(FindKernels("")->path),
             supported.substr(0, supported.find(',')));
  CHECK(supported.find(kernels.path) != std::string::npos);
  CHECK(!FindKernels("sse"));
}

void ThePathGivesThePortableOnesBits(const Kernels& kernels) {
  const Kernels& portable = *PortableKernels();
  Random random(10);
  for (int round = 0; round < 20; ++round) {
    Try("round %d", round);
    const Floats block = SomeFloats(random() % (kStatsBlock + 1), random);
    const BlockStats stats = kernels.stats(block.data(), block.size());
    const BlockStats same = portable.stats(block.data(), block.size());
    CHECK_SAME(stats.sum, same.sum);
    CHECK_SAME(stats.sum_of_squares, same.sum_of_squares);
    CHECK_SAME(stats.max_bits, same.max_bits);

    const NodeKey node = {random(), static_cast<uint32_t>(random()),
                          static_cast<uint32_t>(random() & 0xFFFF),
                          random() % 2 == 1};
    const Bucket bucket = SomeBucket(30, random);
    const int64_t groups = GroupsOf(bucket.size);
    for (const Encoder* encoder = kernels.encoders; encoder->name; ++encoder) {
      CHECK_SAME(Encode(*encoder, bucket.sources, node, groups),
                 Encode(*FindEncoder(portable, encoder->name), bucket.sources,
                        node, groups));
    }

    const int planes = 1 + static_cast<int>(random() % kMaxPlanes);
    const Inputs inputs = SomeInputs(5, groups, random);
    CHECK_SAME(Sum(kernels, inputs, planes, groups),
               Sum(portable, inputs, planes, groups));

    const Words words = SomeWords(40 * planes, random);
    CHECK_SAME(Decode(kernels, words, planes, 0, 40),
               Decode(portable, words, planes, 0, 40));

    for (const Update& update : kUpdates) {
      Variables trained({1000, 250}), same_ones({1000, 250});
      trained.Prepare(update);
      same_ones.Prepare(update);
      trained.Run(kernels, words, planes, update, 0, 40);
      same_ones.Run(portable, words, planes, update, 0, 40);
      trained.CheckEquals(same_ones);
    }
  }
}

std::vector<Laws> AllLaws() {
  return {{LAW(PathsAreFoundByTheirNames)},
          DrawLaws(),
          StatisticsLaws(),
          EncodeLaws(),
          SumLaws(),
          DecodeLaws(),
          UpdateLaws(),
          PrefixCodeLaws(),
          {LAW(ThePathGivesThePortableOnesBits)}};
}

int Run(const char* path) {
  const Kernels* kernels = FindKernels(path);
  if (!kernels) {
    std::printf("no kernels %s here; supported: %s\n", path, SupportedPaths());
    return kSkip;
  }
  size_t count = 0;
  for (const Laws& laws : AllLaws()) {
    for (const auto& each : laws) each.Check(*kernels);
    count += laws.size();
  }
  std::printf("%s: %zu laws hold\n", kernels->path, count);
  return 0;
}

// Checks all paths that this processor has.
int RunAll() {
  for (const char* path : {"portable", "avx2", "avx512"}) {
    const int status = Run(path);
    if (status && status != kSkip) return status;
  }
  return 0;
}

}  // namespace
}  // namespace testing
}  // namespace terngrad

int main(int argc, char** argv) {
  if (argc == 2) return terngrad::testing::Run(argv[1]);
  if (argc == 1) return terngrad::testing::RunAll();
  std::printf("usage: kernels_test [avx512 | avx2 | portable]\n");
  return 2;
}
