// Laws of the memory for frames. All memory for arrays is counted here.

#include "terngrad/cc/net/blocks.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/frames.h"
#include "terngrad/cc/net/mesh.h"
#include "terngrad/cc/net/testing/group.h"
#include "terngrad/cc/net/testing/laws.h"
#include "terngrad/cc/net/testing/operations.h"
#include "terngrad/cc/net/testing/use.h"

namespace {

std::atomic<int64_t> allocated{0};  // bytes of arrays so far
std::atomic<int64_t> freed{0};      // arrays so far

}  // namespace

void* operator new[](size_t octets) {
  allocated += octets;
  return ::operator new(octets);
}
void operator delete[](void* array) noexcept {
  ++freed;
  ::operator delete(array);
}
void operator delete[](void* array, size_t) noexcept {
  ::operator delete[](array);
}

namespace terngrad {
namespace testing {
namespace {

constexpr size_t kSizes[] = {0,    1,     64,     65,     1000,
                             1024, 40000, 131073, 262143, kChunkBytes};

void ABlockTakesAboutTheMemoryOfItsPayload() {
  for (const size_t octets : kSizes) {
    Try("%zu bytes", octets);
    Blocks blocks;
    const int64_t before = allocated;
    const auto block = blocks.Take(octets);
    CHECK(block);
    for (size_t i = 0; i < octets; ++i) block[i] = i;
    const size_t taken = allocated - before;
    CHECK(octets <= taken && taken <= 64 + 2 * octets);
  }
}

void AFreedBlockIsTakenAgain() {
  Blocks blocks;
  for (const size_t octets : kSizes) {
    Try("%zu bytes", octets);
    auto block = blocks.Take(octets);
    const uint8_t* const address = block.get();
    block.reset();
    const int64_t before = allocated;
    CHECK(blocks.Take(octets).get() == address);
    const std::shared_ptr<const void> shared = blocks.Take(octets);
    CHECK(shared.get() == address);
    CHECK(allocated == before);
  }
}

void OnlySomeFreedBlocksAreKept() {
  Blocks blocks;
  std::vector<Blocks::Block> taken;
  for (size_t i = 0; i < Blocks::kKept + 5; ++i) {
    taken.push_back(blocks.Take(kChunkBytes));
  }
  const int64_t before = freed;
  taken.clear();
  CHECK(freed - before == 5);
}

// A late process lets the others hold their packed codes and, unpacked, those
// that arrive.
void FramesThatWaitTakeAboutTheMemoryOfTheirRows() {
  constexpr int kOperations = 50;
  Group group(4);
  std::vector<int> indices;
  for (int i = 0; i < kOperations; ++i) {
    indices.push_back(group.Declare(Codes(std::to_string(i), 100, 1, 4)));
  }
  const int last = group.Declare(Bytes("last", Kind::kGather, 1));
  const int64_t before = allocated;
  const Plan& plan = *group.meshes[0]->FindPlan(indices[0]);
  const auto input = RandomInput(plan);
  const auto expected = Expected(plan, Buffers(4, input))[0];
  std::vector<std::unique_ptr<Use>> uses, lasts;
  const auto submit = [&](int rank) {
    for (const int index : indices) {
      uses.push_back(std::make_unique<Use>(*group.meshes[rank], index, input));
    }
  };
  for (const int rank : {0, 1, 2}) submit(rank);
  // What comes later over the same sockets says that all frames have arrived.
  for (const auto& mesh : group.meshes) {
    lasts.push_back(std::make_unique<Use>(*mesh, last, RandomOctets(1)));
  }
  for (const auto& use : lasts) use->Output();
  for (const auto& use : uses) CHECK(!use->is_done());
  CHECK(allocated - before < kOperations * 4 * 4 * 2 * plan.InputBytes());
  submit(3);
  for (const auto& use : uses) CHECK(use->Output() == expected);
}

}  // namespace

Laws BlockLaws() {
  return {
      LAW(ABlockTakesAboutTheMemoryOfItsPayload),
      LAW(AFreedBlockIsTakenAgain),
      LAW(OnlySomeFreedBlocksAreKept),
      LAW(FramesThatWaitTakeAboutTheMemoryOfTheirRows),
  };
}

}  // namespace testing
}  // namespace terngrad
