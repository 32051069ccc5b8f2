// Uses of operations, for tests of the mesh.

#ifndef TERNGRAD_CC_NET_TESTING_USE_H_
#define TERNGRAD_CC_NET_TESTING_USE_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/mesh.h"
#include "terngrad/cc/net/testing/group.h"

namespace terngrad {
namespace testing {

// Whether a text has a part; if not, prints both.
inline bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::printf("'%s' has no '%s'\n", text.c_str(), part.c_str());
  return false;
}

// One use of an operation by one mesh.
class Use {
 public:
  // With `comes_in_parts` the input is zeros until `Offer` is called.
  Use(Mesh& mesh, int operation, std::vector<uint8_t> input,
      bool comes_in_parts = false)
      : offered_(comes_in_parts ? input : std::vector<uint8_t>()) {
    state_->input = std::move(input);
    if (comes_in_parts)
      std::fill(state_->input.begin(), state_->input.end(), 0);
    state_->output.resize(mesh.FindPlan(operation)->OutputBytes());
    Submission submission;
    submission.operation = operation;
    submission.input = state_->input.data();
    submission.output = state_->output.data();
    submission.owner = state_;
    submission.octets = state_->octets;
    submission.comes_in_parts = comes_in_parts;
    const int64_t row = mesh.FindPlan(operation)->RowBytes(1);
    submission.ready = [state = state_, row](int64_t first, int64_t count) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      CHECK(!state->is_done);
      const auto begin = state->output.begin() + first * row;
      state->ready.push_back({first, count, {begin, begin + count * row}});
    };
    submission.done = [state = state_](const std::string& failure) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      CHECK(!state->is_done);
      state->is_done = true;
      state->failure = failure;
      state->changed.notify_all();
    };
    number_ = mesh.Submit(std::move(submission));
  }

  uint64_t number() const { return number_; }

  // Writes the input's chunks in any order, and offers each when it is there.
  void Offer(Mesh& mesh, int operation, std::mt19937& random) {
    const Plan& plan = *mesh.FindPlan(operation);
    std::vector<std::pair<int, uint32_t>> parts;
    for (const int to : plan.Receivers(mesh.rank())) {
      const uint32_t chunks = plan.Sent(0, mesh.rank(), to).chunks;
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        parts.push_back({to, chunk});
      }
    }
    std::shuffle(parts.begin(), parts.end(), random);
    for (const auto& [to, chunk] : parts) {
      CHECK(!is_done());
      const Range range = plan.Sent(0, mesh.rank(), to);
      const int64_t begin = range.First(chunk) * plan.RowBytes(0);
      const int64_t end = begin + range.Count(chunk) * plan.RowBytes(0);
      // Rows that were offered to another process must not be written again.
      if (!std::equal(offered_.begin() + begin, offered_.begin() + end,
                      state_->input.begin() + begin)) {
        std::copy(offered_.begin() + begin, offered_.begin() + end,
                  state_->input.begin() + begin);
      }
      CHECK(mesh.Offer(number_, operation, to, chunk));
    }
  }

  // Waits for the end; returns why it failed.
  std::string Failure() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const std::chrono::duration<double> timeout(kTimeoutSecs);
    CHECK(state_->changed.wait_for(lock, timeout,
                                   [&] { return state_->is_done; }));
    return state_->failure;
  }

  std::vector<uint8_t> Output() {
    const std::string failure = Failure();
    if (!failure.empty()) std::printf("%s\n", failure.c_str());
    CHECK(failure.empty());
    return state_->output;
  }

  // Rows that were said to be final, and what they were at that time.
  struct Ready {
    int64_t first;
    int64_t count;
    std::vector<uint8_t> rows;
  };
  std::vector<Ready> ready() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->ready;
  }

  bool is_done() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->is_done;
  }

  // Bytes of payloads, once it is done.
  int64_t sent() const { return state_->octets[0]; }
  int64_t received() const { return state_->octets[1]; }

 private:
  struct State {
    std::vector<uint8_t> input;
    std::vector<uint8_t> output;
    int64_t octets[2] = {-1, -1};
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    std::string failure;
    std::vector<Ready> ready;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<uint8_t> offered_;
  uint64_t number_ = 0;
};

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_TESTING_USE_H_
