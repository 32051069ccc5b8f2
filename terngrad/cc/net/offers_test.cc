// Laws of inputs that are offered part by part.

#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/mesh.h"
#include "terngrad/cc/net/testing/group.h"
#include "terngrad/cc/net/testing/laws.h"
#include "terngrad/cc/net/testing/operations.h"
#include "terngrad/cc/net/testing/use.h"

namespace terngrad {
namespace testing {
namespace {

// Some processes offer their parts later, and some have them at once.
void SumsOfOfferedPartsAreTheSame() {
  for (const int size : {1, 2, 3, 4, 5}) {
    Group group(size);
    std::vector<int> indices;
    for (const int64_t rows : {0, 1, 7, 100001}) {
      const std::string name = "codes" + std::to_string(rows);
      indices.push_back(group.Declare(Codes(name, rows, 1, size)));
    }
    indices.push_back(group.Declare(Bytes("few", Kind::kFloats, 5)));
    indices.push_back(group.Declare(Bytes("floats", Kind::kFloats, 300001)));
    for (int round = 0; round < 2; ++round) {
      for (const int operation : indices) {
        const Plan& plan = *group.meshes[0]->FindPlan(operation);
        Buffers inputs(size);
        std::vector<Use> uses;
        for (int rank = 0; rank < size; ++rank) {
          inputs[rank] = RandomInput(plan);
          const bool comes_in_parts = (rank + round) % 3 != 0 || size == 1;
          uses.emplace_back(*group.meshes[rank], operation, inputs[rank],
                            comes_in_parts);
          if (comes_in_parts)
            uses.back().Offer(*group.meshes[rank], operation, generator);
        }
        const Buffers expected = Expected(plan, inputs);
        for (int rank = 0; rank < size; ++rank) {
          CHECK(uses[rank].Output() == expected[rank]);
        }
      }
    }
  }
}

void AnOfferAfterAFailureIsIgnored() {
  Group group(2);
  Mesh& mesh = *group.meshes[0];
  const int operation = group.Declare(Codes("codes", 5, 1, 2));
  const auto input = RandomInput(*mesh.FindPlan(operation));
  Use use(mesh, operation, input, true);
  mesh.Fail("it was stopped");
  CHECK(use.Failure() == "it was stopped");
  CHECK(!mesh.Offer(use.number(), operation, 1, 0));
  CHECK(Use(mesh, operation, input).Failure() == "it was stopped");
}

// An operation that is submitted again too early is refused. What is offered
// for the refused use must not count for the other one.
void AnOfferForARefusedUseIsIgnored() {
  Group group(2);
  const int operation = group.Declare(Codes("codes", 100001, 1, 2));
  const Plan& plan = *group.meshes[0]->FindPlan(operation);
  Buffers inputs = {RandomInput(plan), RandomInput(plan)};
  Use use(*group.meshes[0], operation, inputs[0], true);
  Use again(*group.meshes[0], operation, inputs[0], true);
  CHECK(Contains(again.Failure(), "codes is not done yet"));
  for (uint32_t chunk = 0; chunk < plan.Sent(0, 0, 1).chunks; ++chunk) {
    CHECK(group.meshes[0]->Offer(again.number(), operation, 1, chunk));
  }
  Use other(*group.meshes[1], operation, inputs[1]);
  use.Offer(*group.meshes[0], operation, generator);
  const Buffers expected = Expected(plan, inputs);
  CHECK(use.Output() == expected[0]);
  CHECK(other.Output() == expected[1]);
}

// The sum of few floats may be there before all others have the own part.
void ASumWaitsForAllOfferedParts() {
  Group group(3);
  const int operation = group.Declare(Bytes("few", Kind::kFloats, 5));
  const int next = group.Declare(Bytes("next", Kind::kFloats, 5));
  const auto input = RandomInput(*group.meshes[0]->FindPlan(operation));
  Mesh& mesh = *group.meshes[0];
  Use use(mesh, operation, input, true);
  Use one(*group.meshes[1], operation, input);
  Use two(*group.meshes[2], operation, input);
  CHECK(mesh.Offer(use.number(), operation, 1, 0));
  CHECK(!one.Output().empty());
  // What comes later over the same sockets says that all of it has arrived.
  std::vector<Use> later;
  for (auto& each : group.meshes) later.emplace_back(*each, next, input);
  for (Use& each : later) CHECK(!each.Output().empty());
  CHECK(!use.is_done());
  CHECK(mesh.Offer(use.number(), operation, 2, 0));
  CHECK(!use.Output().empty());
  CHECK(!two.Output().empty());
}

}  // namespace

Laws OfferLaws() {
  return {
      LAW(SumsOfOfferedPartsAreTheSame),
      LAW(AnOfferAfterAFailureIsIgnored),
      LAW(AnOfferForARefusedUseIsIgnored),
      LAW(ASumWaitsForAllOfferedParts),
  };
}

}  // namespace testing
}  // namespace terngrad
