// mesh_test [CA CERT KEY LIBSSL]: checks the laws of the mesh, with several
// processes' meshes in one process, without a framework. With PEM files of a
// certificate for 127.0.0.1 the meshes' sockets are encrypted.

#include "terngrad/cc/net/mesh.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/testing/group.h"
#include "terngrad/cc/net/testing/laws.h"
#include "terngrad/cc/net/testing/operations.h"
#include "terngrad/cc/net/testing/use.h"
#include "terngrad/cc/net/tls.h"

namespace terngrad {
namespace testing {
namespace {

void AProcessMayBeOneUseAhead() {
  Group group(3);
  const int index = group.Declare(Bytes("x", Kind::kFloats, 200000));
  const int slow = group.Declare(Bytes("y", Kind::kGather, 9));
  Buffers inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(RandomFloats(200000));
  const Buffers expected = Expected(*group.meshes[0]->FindPlan(index), inputs);
  // Process 0 submits each use as soon as its last one is done, the others do
  // so late.
  for (int round = 0; round < 5; ++round) {
    Use first(*group.meshes[0], index, inputs[0]);
    Use early(*group.meshes[0], slow, RandomOctets(9));
    Use second(*group.meshes[1], index, inputs[1]);
    CHECK(!first.is_done());
    Use third(*group.meshes[2], index, inputs[2]);
    CHECK(first.Output() == expected[0]);
    Use again(*group.meshes[0], index, inputs[0]);
    CHECK(second.Output() == expected[1]);
    CHECK(third.Output() == expected[2]);
    Use late1(*group.meshes[1], slow, RandomOctets(9));
    Use late2(*group.meshes[2], slow, RandomOctets(9));
    Use last1(*group.meshes[1], index, inputs[1]);
    Use last2(*group.meshes[2], index, inputs[2]);
    CHECK(again.Output() == expected[0]);
    CHECK(again.sent() == first.sent() && first.sent() > 0);
    CHECK(again.received() == first.received() && first.received() > 0);
    CHECK(early.Output() == late1.Output());
    CHECK(last1.Output() == last2.Output());
    late2.Output();
  }
}

void PartsOfAnUndeclaredOperationWait() {
  Group group(2);
  std::string error;
  const auto declaration = Bytes("x", Kind::kGather, 1 << 20);
  const int here = group.meshes[0]->Declare(declaration, &error);
  Use first(*group.meshes[0], here, RandomOctets(1 << 20));
  const int other = group.Declare(Bytes("other", Kind::kGather, 1));
  CHECK(!first.is_done());
  const int there = group.meshes[1]->Declare(declaration, &error);
  Use second(*group.meshes[1], there, RandomOctets(1 << 20));
  CHECK(first.Output() == second.Output());
  (void)other;
}

// Also where each operation is declared when the last one is done, and one
// process is done early.
void AnUndeclaredOperationDelaysNoEarlierOne() {
  Group group(2);
  for (int i = 0; i < 3; ++i) {
    const int64_t rows = 16 << 20;
    std::vector<std::unique_ptr<Use>> uses;
    for (auto& mesh : group.meshes) {
      std::string error;
      const std::string name = std::to_string(i);
      uses.push_back(std::make_unique<Use>(
          *mesh, mesh->Declare(Bytes(name, Kind::kBroadcast, rows), &error),
          RandomOctets(rows)));
      if (mesh == group.meshes[0]) continue;
      uses[0]->Output();
      uses.push_back(std::make_unique<Use>(
          *group.meshes[0],
          group.meshes[0]->Declare(Bytes(name + "s", Kind::kGather, 9), &error),
          RandomOctets(9)));
      uses[1]->Output();
      Use last(*mesh,
               mesh->Declare(Bytes(name + "s", Kind::kGather, 9), &error),
               RandomOctets(9));
      CHECK(last.Output() == uses[2]->Output());
    }
  }
}

void ADifferentDeclarationIsNamed() {
  Group group(2);
  std::string error;
  const int a = group.meshes[0]->Declare(Bytes("x", Kind::kFloats, 20), &error);
  const int b = group.meshes[1]->Declare(Bytes("x", Kind::kFloats, 21), &error);
  Use first(*group.meshes[0], a, RandomFloats(20));
  Use second(*group.meshes[1], b, RandomFloats(21));
  // One of them finds it, and drops what it has not sent.
  while (group.meshes[0]->failure() + group.meshes[1]->failure() == "") {
    usleep(1000);
  }
  const bool is_first = group.meshes[1]->failure().empty();
  const std::string failure = (is_first ? first : second).Failure();
  CHECK(Contains(failure, is_first
                              ? "worker 1: x has kind floats, 21 rows there"
                              : "worker 0: x has kind floats, 20 rows there"));
  CHECK(Contains(failure, is_first ? "20 rows here" : "21 rows here"));
  // The same name for another operation of one process.
  CHECK(group.meshes[0]->Declare(Bytes("x", Kind::kGather, 20), &error) == -1);
  CHECK(Contains(error, "kind floats, 20 rows"));
}

void ALostProcessIsNamedToAll() {
  for (const bool early : {false, true}) {
    Group group(3);
    const int index = group.Declare(Bytes("x", Kind::kFloats, 1 << 20));
    std::vector<std::unique_ptr<Use>> uses;
    for (const int i : {0, 2}) {
      if (early) group.meshes[1].reset();
      uses.push_back(std::make_unique<Use>(*group.meshes[i], index,
                                           RandomFloats(1 << 20)));
    }
    group.meshes[1].reset();
    for (auto& use : uses) CHECK(Contains(use->Failure(), "worker 1"));
    Use later(*group.meshes[0], index, RandomFloats(1 << 20));
    CHECK(Contains(later.Failure(), "worker 1"));
    CHECK(Contains(group.meshes[2]->failure(), "worker 1"));
  }
}

void AProcessThatLeavesAtItsEndDisturbsNobody() {
  Group group(3);
  const int index = group.Declare(Bytes("x", Kind::kFloats, 1 << 20));
  std::vector<std::unique_ptr<Use>> uses;
  for (int i = 0; i < 3; ++i) {
    uses.push_back(
        std::make_unique<Use>(*group.meshes[i], index, RandomFloats(1 << 20)));
  }
  uses[1]->Output();
  group.meshes[1]->Close(kTimeoutSecs);
  CHECK(uses[0]->Output() == uses[2]->Output());
  CHECK(group.meshes[0]->failure().empty());
}

void AFailureEndsWhatIsUnderWay() {
  Group group(2);
  const int index = group.Declare(Bytes("x", Kind::kGather, 1));
  Use use(*group.meshes[0], index, RandomOctets(1));
  group.meshes[0]->Fail("no more");
  CHECK(use.Failure() == "no more");
  group.meshes[0]->Cancel();
  CHECK(!group.meshes[0]->was_cancelled());  // the first reason counts
  Use other(*group.meshes[1], index, RandomOctets(1));
  group.meshes[1]->Close(0);
  other.Failure();
}

void AMeshWithoutDescriptorsFails() {
  rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  for (int left : {0, 1}) {  // it needs two
    const int lowest = dup(STDOUT_FILENO);
    close(lowest);
    rlimit few = before;
    few.rlim_cur = lowest + left;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    Mesh mesh(0, {"worker 0"});
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    mesh.Start();
    std::string error;
    const int index = mesh.Declare(Bytes("x", Kind::kGather, 1), &error);
    Use use(mesh, index, RandomOctets(1));
    CHECK(use.Failure() == mesh.failure());
    CHECK(mesh.failure().find("its sockets cannot be watched: ") == 0);
  }
}

Laws MeshLaws() {
  return {
      LAW(AProcessMayBeOneUseAhead),
      LAW(PartsOfAnUndeclaredOperationWait),
      LAW(AnUndeclaredOperationDelaysNoEarlierOne),
      LAW(ADifferentDeclarationIsNamed),
      LAW(ALostProcessIsNamedToAll),
      LAW(AProcessThatLeavesAtItsEndDisturbsNobody),
      LAW(AFailureEndsWhatIsUnderWay),
      LAW(AMeshWithoutDescriptorsFails),
  };
}

}  // namespace
}  // namespace testing
}  // namespace terngrad

int main(int count, char** words) {
  using namespace terngrad::testing;
  if (count == 5) {
    tls_files = {words[1], words[2], words[3]};
    std::string error;
    if (!terngrad::FindOpenSsl({words[4]}, &error)) {
      std::printf("%s\n", error.c_str());
      return 1;
    }
  }
  size_t checked = 0;
  for (const Laws& laws : {ReduceLaws(), BlockLaws(), OperationLaws(),
                           OfferLaws(), MeshLaws(), ConnectionLaws()}) {
    for (const auto& each : laws) each.Check();
    checked += laws.size();
  }
  std::printf("mesh: %zu laws hold\n", checked);
}
