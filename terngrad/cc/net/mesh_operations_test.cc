// Laws of what operations give, when, and how many bytes they send.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
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

std::vector<Declaration> SomeOperations(int size) {
  std::vector<Declaration> found;
  for (const int64_t n : {0, 1, 5, 1000, 300001}) {
    const std::string name = std::to_string(n);
    found.push_back(Bytes("gather" + name, Kind::kGather, n));
    found.push_back(Bytes("all to all" + name, Kind::kAllToAll, n));
    found.push_back(Bytes("broadcast" + name, Kind::kBroadcast, n));
    found.push_back(Bytes("floats" + name, Kind::kFloats, n));
    found.push_back(Bytes("maxima" + name, Kind::kMaxima, n));
    found.push_back(Bytes("halves" + name, Kind::kHalves, n));
    const int64_t rows = std::min<int64_t>(n, 100001);  // of 32; some chunks
    found.push_back(Codes("codes" + name, rows, 1, size));
    found.push_back(Codes("sums" + name, rows, 2, size));
    found.push_back(Codes("fours" + name, rows, 4, size));
    for (const int max_code : {1, 4}) {
      const std::string end = name + " up to " + std::to_string(max_code);
      Declaration half = Codes("scatter" + end, rows, max_code, size);
      half.kind = Kind::kScatterCodes;
      found.push_back(half);
      half = Codes("gather codes" + end, rows, max_code, 1);
      half.kind = Kind::kGatherCodes;
      found.push_back(half);
    }
  }
  return found;
}

void RowsOfASumAreDeliveredOnceTheyAreFinal() {
  constexpr int64_t kRows = 100001;  // several chunks a share
  for (const int size : {1, 2, 3, 4}) {
    Group group(size);
    const int index = group.Declare(Codes("codes", kRows, 1, size));
    const Plan& plan = *group.meshes[0]->FindPlan(index);
    Buffers inputs;
    std::vector<std::unique_ptr<Use>> uses;
    for (int i = 0; i < size; ++i) inputs.push_back(RandomInput(plan));
    for (int i = 0; i < size; ++i) {
      uses.push_back(std::make_unique<Use>(*group.meshes[i], index, inputs[i]));
    }
    const auto expected = Expected(plan, inputs)[0];
    for (auto& use : uses) {
      CHECK(use->Output() == expected);
      std::vector<int> deliveries(kRows);
      for (const Use::Ready& ready : use->ready()) {
        const int64_t row = plan.RowBytes(1);
        CHECK(std::memcmp(ready.rows.data(), &expected[ready.first * row],
                          ready.count * row) == 0);
        for (int64_t i = 0; i < ready.count; ++i) ++deliveries[ready.first + i];
      }
      CHECK(deliveries == std::vector<int>(kRows, 1));
    }
  }
}

void BytesAreCountedAsTheyTravel() {
  constexpr int64_t kRows = 100001;
  struct {
    int size;
    double zeros;
    double max_bits;  // bits that a process sends for a value
  } const found[] = {
      {2, 1, 0.26}, {2, 0.85, 0.65}, {2, 0, 1.75}, {4, 0.85, 1.75}};
  for (const auto& [size, zeros, max_bits] : found) {
    Group group(size);
    const int index = group.Declare(Codes("codes", kRows, 1, size));
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<Use>> uses;
      std::vector<int64_t> before;
      for (auto& mesh : group.meshes) {
        before.push_back(mesh->bytes_sent());
      }
      for (auto& mesh : group.meshes) {
        uses.push_back(
            std::make_unique<Use>(*mesh, index, RandomCodes(kRows, 1, zeros)));
      }
      for (auto& use : uses) use->Output();
      int64_t sent = 0, received = 0;
      for (int i = 0; i < size; ++i) {
        const int64_t mine = group.meshes[i]->bytes_sent() - before[i];
        CHECK(uses[i]->sent() == mine);
        CHECK(mine * 8.0 / (32 * kRows) < max_bits);
        sent += uses[i]->sent();
        received += uses[i]->received();
      }
      CHECK(sent == received);
    }
  }
}

// Runs all operations some rounds at once, each mesh in an order of its own.
void AllOperationsGiveWhatTheyMust() {
  for (const int size : {1, 2, 3, 4, 5}) {
    Group group(size);
    std::vector<int> indices;
    for (const auto& each : SomeOperations(size)) {
      indices.push_back(group.Declare(each));
    }
    for (int round = 0; round < 2; ++round) {
      std::vector<Buffers> inputs(indices.size(), Buffers(size));
      std::vector<std::vector<std::unique_ptr<Use>>> uses(indices.size());
      for (size_t i = 0; i < indices.size(); ++i) {
        const Plan& plan = *group.meshes[0]->FindPlan(indices[i]);
        for (auto& input : inputs[i]) input = RandomInput(plan);
        uses[i].resize(size);
      }
      for (int rank = 0; rank < size; ++rank) {
        std::vector<size_t> order(indices.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), generator);
        for (const size_t i : order) {
          uses[i][rank] = std::make_unique<Use>(*group.meshes[rank], indices[i],
                                                inputs[i][rank]);
        }
      }
      for (size_t i = 0; i < indices.size(); ++i) {
        const Plan& plan = *group.meshes[0]->FindPlan(indices[i]);
        const Buffers expected = Expected(plan, inputs[i]);
        for (int rank = 0; rank < size; ++rank) {
          const auto output = uses[i][rank]->Output();
          if (output != expected[rank]) {
            std::printf("%s of %d\n", plan.declaration().name.c_str(), size);
          }
          CHECK(output == expected[rank]);
        }
      }
    }
    int64_t sent = 0, received = 0;
    for (auto& mesh : group.meshes) {
      sent += mesh->bytes_sent();
      received += mesh->bytes_received();
    }
    CHECK(sent == received);
  }
}

// Each process begins its next use as soon as one is done.
void NobodyRunsAheadInABroadcast() {
  for (const int64_t rows : {0, 5}) {
    Group group(3);
    const int index = group.Declare(Bytes("few", Kind::kBroadcast, rows));
    const std::vector<uint8_t> input =
        RandomInput(*group.meshes[0]->FindPlan(index));
    std::vector<std::thread> processes;
    for (auto& mesh : group.meshes) {
      processes.emplace_back([&mesh, &input, index] {
        for (int i = 0; i < 500; ++i) {
          CHECK(Use(*mesh, index, input).Output() == input);
        }
      });
    }
    for (auto& process : processes) process.join();
  }
}

}  // namespace

Laws OperationLaws() {
  return {
      LAW(RowsOfASumAreDeliveredOnceTheyAreFinal),
      LAW(BytesAreCountedAsTheyTravel),
      LAW(AllOperationsGiveWhatTheyMust),
      LAW(NobodyRunsAheadInABroadcast),
  };
}

}  // namespace testing
}  // namespace terngrad
