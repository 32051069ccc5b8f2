// mesh_test [CA CERT KEY LIBSSL]: checks the laws of the mesh, with several
// processes' meshes in one process, without a framework. With PEM files of a
// certificate for 127.0.0.1 the meshes' sockets are encrypted.

#include "terngrad/cc/net/mesh.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terngrad/cc/net/tls.h"

namespace terngrad {
namespace {

// ---- Checks ----------------------------------------------------------------

const char* law = "";  // being checked

#define CHECK(condition)                                                     \
  if (!(condition)) {                                                        \
    std::printf("%s:%d: %s: not %s\n", __FILE__, __LINE__, law, #condition); \
    std::fflush(stdout);                                                     \
    std::_Exit(1);                                                           \
  }

bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::printf("'%s' has no '%s'\n", text.c_str(), part.c_str());
  return false;
}

// ---- Meshes ----------------------------------------------------------------

constexpr double kTimeoutSecs = 60;

std::vector<std::string> Names(int size) {
  std::vector<std::string> names;
  for (int i = 0; i < size; ++i) names.push_back("worker " + std::to_string(i));
  return names;
}

TlsFiles files;  // of the certificate; empty = plain sockets

// Returns the two ends of a connection.
std::array<std::unique_ptr<Channel>, 2> Pair() {
  int pair[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  if (files.ca.empty()) {
    return {std::make_unique<Channel>(pair[0]),
            std::make_unique<Channel>(pair[1])};
  }
  auto one = std::make_unique<TlsChannel>(pair[0]);
  auto two = std::make_unique<TlsChannel>(pair[1]);
  const auto shake = [](TlsChannel* channel, bool is_server) {
    CHECK(channel
              ->Handshake(files, "127.0.0.1", "a to b", is_server, kTimeoutSecs)
              .empty());
  };
  std::thread server(shake, one.get(), true);
  shake(two.get(), false);
  server.join();
  return {std::move(one), std::move(two)};
}

// P meshes, each joined to all others.
struct Group {
  explicit Group(int size, bool start = true) {
    for (int i = 0; i < size; ++i) {
      meshes.push_back(std::make_unique<Mesh>(i, Names(size)));
    }
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < i; ++j) {
        auto pair = Pair();
        meshes[i]->AddConnection(j, std::move(pair[0]));
        meshes[j]->AddConnection(i, std::move(pair[1]));
      }
    }
    for (auto& mesh : meshes) {
      if (start) mesh->Start();
    }
  }

  int Declare(const Declaration& declaration) {
    int index = -1;
    for (auto& mesh : meshes) {
      std::string error;
      index = mesh->Declare(declaration, &error);
      CHECK(error.empty());
    }
    return index;
  }

  int size() const { return meshes.size(); }

  std::vector<std::unique_ptr<Mesh>> meshes;
};

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

std::mt19937 generator(1);

// Draws are what takes longest with sanitizers: so many are made, then they
// repeat. No chunk has a multiple of them, so none equals the next.
constexpr int64_t kDraws = 1009;

// Copies the first `drawn` values over all that follow.
template <class T>
void Repeat(std::vector<T>* values, int64_t drawn = kDraws) {
  const int64_t count = values->size();
  for (int64_t i = drawn; i < count; i += drawn) {
    std::copy_n(values->begin(), std::min(drawn, count - i),
                values->begin() + i);
  }
}

std::vector<uint8_t> Random(int64_t octets) {
  std::vector<uint8_t> values(octets);
  for (int64_t i = 0; i < std::min(octets, kDraws); ++i) {
    values[i] = generator();
  }
  Repeat(&values);
  return values;
}

std::vector<uint8_t> RandomFloats(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (int64_t i = 0; i < std::min(count, kDraws); ++i) {
    values[i] = normal(generator);
  }
  Repeat(&values);
  std::vector<uint8_t> octets(4 * count);
  if (count) std::memcpy(octets.data(), values.data(), octets.size());
  return octets;
}

Declaration Bytes(const std::string& name, Kind kind, int64_t rows) {
  return {name, kind, rows};
}

// Codes up to `max_code` in magnitude, of `size` processes.
Declaration Codes(const std::string& name, int64_t rows, int max_code,
                  int size) {
  return {name, Kind::kCodes, rows, max_code, max_code * size, FindKernels("")};
}

// Rows of codes up to `max_code` in magnitude; a share of about `zeros` is 0,
// and of the rest each code has the same chance.
std::vector<uint8_t> RandomCodes(int64_t rows, int max_code, double zeros = 0) {
  const int planes = PlaneCount(max_code);
  std::bernoulli_distribution is_zero(zeros);
  std::vector<uint32_t> words(rows * planes);
  for (int64_t i = 0; i < std::min(rows, kDraws) * 32; ++i) {
    const int drawn = static_cast<int>(generator() % (2 * max_code + 1));
    const uint32_t code = is_zero(generator) ? 0 : drawn - max_code;
    for (int j = 0; j < planes; ++j) {
      words[i / 32 * planes + j] |= (code >> j & 1) << i % 32;
    }
  }
  Repeat(&words, kDraws * planes);
  std::vector<uint8_t> octets(4 * words.size());
  if (rows) std::memcpy(octets.data(), words.data(), octets.size());
  return octets;
}

std::vector<uint8_t> RandomInput(const Plan& plan) {
  const Declaration& declaration = plan.declaration();
  if (declaration.kind == Kind::kFloats || declaration.kind == Kind::kMaxima) {
    return RandomFloats(declaration.rows);
  }
  if (HasCodes(declaration.kind)) {
    const int64_t row = 4 * declaration.planes_in();
    return RandomCodes(plan.InputBytes() / row, declaration.largest_in);
  }
  return Random(plan.InputBytes());
}

using Buffers = std::vector<std::vector<uint8_t>>;

// Returns what each process must get.
Buffers Expected(const Plan& plan, const Buffers& inputs) {
  const int size = inputs.size();
  const int64_t rows = plan.declaration().rows;
  std::vector<uint8_t> same(plan.OutputBytes());
  Buffers expected;
  std::vector<const uint8_t*> parts;
  for (const auto& input : inputs) parts.push_back(input.data());
  for (int i = 0; i < size; ++i) {
    switch (plan.declaration().kind) {
      case Kind::kBroadcast:
        same = inputs[0];
        break;
      case Kind::kGather:
      case Kind::kAllToAll:
        for (int j = 0; j < size; ++j) {
          const bool all = plan.declaration().kind == Kind::kAllToAll;
          std::copy_n(inputs[j].begin() + (all ? i * rows : 0), rows,
                      same.begin() + j * rows);
        }
        break;
      case Kind::kScatterCodes: {
        std::vector<uint8_t> sums(rows * plan.RowBytes(1));
        plan.Add(parts, rows, sums.data());
        const Range share = plan.Added(i);
        same.assign(plan.OutputBytes(), 0);
        std::copy(sums.begin() + share.begin * plan.RowBytes(1),
                  sums.begin() + share.end * plan.RowBytes(1), same.begin());
        break;
      }
      case Kind::kGatherCodes:
        for (int j = 0; j < size; ++j) {
          const Range share = plan.Sent(0, j, i);
          std::copy_n(inputs[j].begin(),
                      (share.end - share.begin) * plan.RowBytes(0),
                      same.begin() + share.begin * plan.RowBytes(0));
        }
        break;
      default:
        plan.Add(parts, rows, same.data());
    }
    expected.push_back(same);
  }
  return expected;
}

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

// All float16, and the values halfway between two of them.
void HalvesAreRoundedToTheNearestAndToEvenInTies() {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const float value = FloatOfHalf(half);
    CHECK(HalfOfFloat(value) == half);
    CHECK(HalfOfFloat(-value) == (half | 0x8000));
    const float next = half + 1 < 0x7c00 ? FloatOfHalf(half + 1) : 65536.0f;
    const float middle = value + (next - value) / 2;
    CHECK(HalfOfFloat(middle) == half + half % 2);
    CHECK(HalfOfFloat(std::nextafter(middle, 0.0f)) == half);
    CHECK(HalfOfFloat(std::nextafter(middle, 1e6f)) == half + 1);
  }
  CHECK(HalfOfFloat(1e6f) == 0x7c00);
  CHECK(std::isinf(FloatOfHalf(0x7c00)) && std::isnan(FloatOfHalf(0x7e01)));
  CHECK(HalfOfFloat(std::nanf("")) == 0x7e00);
}

void AMaximumIsNoNumberWhereAPartIsNone() {
  const Plan plan(Bytes("x", Kind::kMaxima, 3), 3);
  const float none = std::nanf("");
  const float parts[3][3] = {{1, none, 2}, {3, 5, none}, {2, 4, 6}};
  std::vector<const uint8_t*> rows;
  for (const auto& part : parts) {
    rows.push_back(reinterpret_cast<const uint8_t*>(part));
  }
  float largest[3];
  plan.Add(rows, 3, reinterpret_cast<uint8_t*>(largest));
  CHECK(largest[0] == 3);
  CHECK(std::isnan(largest[1]) && std::isnan(largest[2]));
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
void ASumEndsNotBeforeAllPartsAreOffered() {
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

void SumsOfFloatsAreAddedInATree() {
  const float big = 1e8f;
  const std::vector<float> a{big}, b{1}, c{-big}, d{1}, e{3};
  float total;
  TreeSum({a.data(), b.data(), c.data(), d.data(), e.data()}, 1, &total);
  CHECK(total == ((a[0] + b[0]) + (c[0] + d[0])) + e[0]);
  TreeSum({a.data(), b.data(), c.data()}, 1, &total);
  CHECK(total == (a[0] + b[0]) + c[0]);
}

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
    Use early(*group.meshes[0], slow, Random(9));
    Use second(*group.meshes[1], index, inputs[1]);
    CHECK(!first.is_done());
    Use third(*group.meshes[2], index, inputs[2]);
    CHECK(first.Output() == expected[0]);
    Use again(*group.meshes[0], index, inputs[0]);
    CHECK(second.Output() == expected[1]);
    CHECK(third.Output() == expected[2]);
    Use late1(*group.meshes[1], slow, Random(9));
    Use late2(*group.meshes[2], slow, Random(9));
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
  Use first(*group.meshes[0], here, Random(1 << 20));
  const int other = group.Declare(Bytes("other", Kind::kGather, 1));
  CHECK(!first.is_done());
  const int there = group.meshes[1]->Declare(declaration, &error);
  Use second(*group.meshes[1], there, Random(1 << 20));
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
          Random(rows)));
      if (mesh == group.meshes[0]) continue;
      uses[0]->Output();
      uses.push_back(std::make_unique<Use>(
          *group.meshes[0],
          group.meshes[0]->Declare(Bytes(name + "s", Kind::kGather, 9), &error),
          Random(9)));
      uses[1]->Output();
      Use last(*mesh,
               mesh->Declare(Bytes(name + "s", Kind::kGather, 9), &error),
               Random(9));
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
  CHECK(Contains(failure, is_first ? "worker 1: x has kind 5, 21 rows there"
                                   : "worker 0: x has kind 5, 20 rows there"));
  CHECK(Contains(failure, is_first ? "20 rows here" : "21 rows here"));
  // The same name for another operation of one process.
  CHECK(group.meshes[0]->Declare(Bytes("x", Kind::kGather, 20), &error) == -1);
  CHECK(Contains(error, "kind 5, 20 rows"));
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
  Use use(*group.meshes[0], index, Random(1));
  group.meshes[0]->Fail("no more");
  CHECK(use.Failure() == "no more");
  group.meshes[0]->Cancel();
  CHECK(!group.meshes[0]->was_cancelled());  // the first reason counts
  Use other(*group.meshes[1], index, Random(1));
  group.meshes[1]->Close(0);
  other.Failure();
}

// ---- Strange frames --------------------------------------------------------

// A mesh of two processes, of which the test is one.
struct Alone {
  Alone() : mesh(0, Names(2)) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    mesh.AddConnection(1, std::make_unique<Channel>(pair[0]));
    other = pair[1];
    mesh.Start();
    std::string error;
    floats = mesh.Declare(Bytes("floats", Kind::kFloats, 100), &error);
    gather = mesh.Declare(Bytes("gather", Kind::kGather, 1000), &error);
    codes = mesh.Declare(Codes("codes", 50, 1, 2), &error);
  }
  ~Alone() { close(other); }

  // Sends bytes; the mesh may have closed the socket.
  void Send(const void* data, size_t octets) {
    [[maybe_unused]] const ssize_t sent =
        send(other, data, octets, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  Mesh mesh;
  int other;
  int floats;
  int gather;
  int codes;
};

FrameHeader Good(const std::string& name, Kind kind, uint64_t rows,
                 uint32_t octets) {
  FrameHeader header = {};
  header.key = KeyOf(name);
  header.rows = rows;
  header.length = octets;
  header.kind = static_cast<uint8_t>(kind);
  return header;
}

void FramesThatAreOffAreRefused() {
  struct {
    const char* what;
    void (*spoil)(FrameHeader&);
  } const spoilt[] = {
      {"rows there", [](FrameHeader& h) { h.rows = 1ull << 60; }},
      {"kind 77", [](FrameHeader& h) { h.kind = 77; }},
      {"chunk 1 ", [](FrameHeader& h) { h.chunk = 1; }},
      {"chunk 4294967295 ", [](FrameHeader& h) { h.chunk = ~0u; }},
      {"399 bytes", [](FrameHeader& h) { h.length = 399; }},
      {"4294967295 bytes", [](FrameHeader& h) { h.length = ~0u; }},
      {"shot 1", [](FrameHeader& h) { h.shot = 1; }},
      {"shot 255", [](FrameHeader& h) { h.shot = 255; }},
      {"use 2 ", [](FrameHeader& h) { h.round = 2; }},
      {"use 4294967295 ", [](FrameHeader& h) { h.round = ~0u; }},
      {"planes_in", [](FrameHeader& h) { h.planes_in = 1; }},
  };
  for (const auto& each : spoilt) {
    Alone alone;
    Use use(alone.mesh, alone.floats, RandomFloats(100));
    FrameHeader header = Good("floats", Kind::kFloats, 100, 400);
    each.spoil(header);
    alone.Send(&header, sizeof(header));
    const std::string failure = use.Failure();
    CHECK(Contains(failure, "worker 1: "));
    if (std::string(each.what) != "planes_in") {
      CHECK(Contains(failure, each.what));
    }
  }
  Alone alone;
  Use use(alone.mesh, alone.gather, Random(1000));
  const FrameHeader header = Good("floats", Kind::kFloats, 100, 400);
  const auto payload = RandomFloats(100);
  for (int i = 0; i < 2; ++i) {
    alone.Send(&header, sizeof(header));
    alone.Send(payload.data(), payload.size());
  }
  CHECK(Contains(use.Failure(), "worker 1: it sent a chunk of floats twice"));
}

FrameHeader GoodCodes(uint32_t octets) {
  FrameHeader header = Good("codes", Kind::kCodes, 50, octets);
  header.planes_in = 2;
  header.planes_out = 3;
  return header;
}

void CodesOfAnImpossibleSizeAreRefused() {
  for (const uint32_t octets : {401u, ~0u}) {  // 400 in planes
    Alone alone;
    Use use(alone.mesh, alone.codes, RandomCodes(50, 1));
    const FrameHeader header = GoodCodes(octets);
    alone.Send(&header, sizeof(header));
    CHECK(Contains(use.Failure(), "worker 1: it sent chunk 0 of codes with " +
                                      std::to_string(octets) + " bytes"));
  }
}

void BytesOfNoCodeAreRefused() {
  for (const bool early : {false, true}) {
    for (const uint32_t octets : {0, 7, 8, 64, 399}) {
      Alone alone;
      const FrameHeader header = GoodCodes(octets);
      const std::vector<uint8_t> payload(octets, 0xFF);
      const auto send = [&] {
        alone.Send(&header, sizeof(header));
        alone.Send(payload.data(), octets);
      };
      if (early) send();
      Use use(alone.mesh, alone.codes, RandomCodes(50, 1));
      if (!early) send();
      CHECK(Contains(use.Failure(),
                     "worker 1: it sent chunk 0 of codes with bytes of no "
                     "code"));
    }
  }
}

// A payload of all zeros: 8 bytes that say quads, 56 for 400 quads.
void GoodCodesAreTaken() {
  for (const bool early : {false, true}) {
    Alone alone;
    const FrameHeader header = GoodCodes(64);
    const std::vector<uint8_t> payload(64);
    const auto send = [&] {
      alone.Send(&header, sizeof(header));
      alone.Send(payload.data(), payload.size());
    };
    const auto mine = RandomCodes(50, 1);
    if (early) send();
    Use use(alone.mesh, alone.codes, mine);
    if (!early) send();
    std::vector<uint32_t> words(50 * 3), own(50 * 2);
    std::memcpy(words.data(), use.Output().data(), 4 * words.size());
    std::memcpy(own.data(), mine.data(), mine.size());
    for (int g = 0; g < 50; ++g) {
      CHECK(words[3 * g] == own[2 * g]);
      CHECK(words[3 * g + 1] == own[2 * g + 1]);
      CHECK(words[3 * g + 2] == own[2 * g + 1]);
    }
  }
}

// Whole, cut and changed frames in any order end well or with a name.
void AnyBytesEndInAResultOrAName() {
  for (int i = 0; i < 300; ++i) {
    Alone alone;
    Use use(alone.mesh, alone.floats, RandomFloats(100));
    std::vector<uint8_t> stream;
    for (int j = 0; j < 6; ++j) {
      FrameHeader header = Good("floats", Kind::kFloats, 100, 400);
      if (generator() % 2) header = Good("gather", Kind::kGather, 1000, 1000);
      header.round = generator() % 2;
      auto* octets = reinterpret_cast<uint8_t*>(&header);
      if (generator() % 4 == 0)
        octets[generator() % 32] ^= 1 << generator() % 8;
      stream.insert(stream.end(), octets, octets + sizeof(header));
      const auto payload = RandomFloats(header.length % 4096 / 4);
      stream.insert(stream.end(), payload.begin(), payload.end());
    }
    alone.Send(stream.data(), generator() % (stream.size() + 1));
    shutdown(alone.other, SHUT_WR);
    const std::string failure = use.Failure();
    CHECK(failure.empty() || Contains(failure, "worker 1"));
  }
}

void ASlowReaderGetsAll() {
  Group group(2, false);
  const int index = group.Declare(Bytes("x", Kind::kGather, 5 << 20));
  const int small = group.Declare(Bytes("small", Kind::kGather, 100));
  group.meshes[0]->Start();
  Use first(*group.meshes[0], index, Random(5 << 20));
  Use early(*group.meshes[0], small, Random(100));
  usleep(100000);
  group.meshes[1]->Start();
  Use second(*group.meshes[1], index, Random(5 << 20));
  Use late(*group.meshes[1], small, Random(100));
  CHECK(first.Output() == second.Output());
  CHECK(early.Output() == late.Output());
}

const struct {
  const char* name;
  void (*check)();
} kLaws[] = {
#define LAW(name) {#name, name}
    LAW(SumsOfFloatsAreAddedInATree),
    LAW(HalvesAreRoundedToTheNearestAndToEvenInTies),
    LAW(AMaximumIsNoNumberWhereAPartIsNone),
    LAW(RowsOfASumAreDeliveredOnceTheyAreFinal),
    LAW(BytesAreCountedAsTheyTravel),
    LAW(AllOperationsGiveWhatTheyMust),
    LAW(SumsOfOfferedPartsAreTheSame),
    LAW(AnOfferAfterAFailureIsIgnored),
    LAW(AnOfferForARefusedUseIsIgnored),
    LAW(ASumEndsNotBeforeAllPartsAreOffered),
    LAW(AProcessMayBeOneUseAhead),
    LAW(PartsOfAnUndeclaredOperationWait),
    LAW(AnUndeclaredOperationDelaysNoEarlierOne),
    LAW(ADifferentDeclarationIsNamed),
    LAW(ALostProcessIsNamedToAll),
    LAW(AProcessThatLeavesAtItsEndDisturbsNobody),
    LAW(AFailureEndsWhatIsUnderWay),
    LAW(FramesThatAreOffAreRefused),
    LAW(CodesOfAnImpossibleSizeAreRefused),
    LAW(BytesOfNoCodeAreRefused),
    LAW(GoodCodesAreTaken),
    LAW(AnyBytesEndInAResultOrAName),
    LAW(ASlowReaderGetsAll),
};

}  // namespace
}  // namespace terngrad

int main(int count, char** words) {
  if (count == 5) {
    terngrad::files = {words[1], words[2], words[3]};
    std::string error;
    if (!terngrad::FindOpenSsl({words[4]}, &error)) {
      std::printf("%s\n", error.c_str());
      return 1;
    }
  }
  for (const auto& each : terngrad::kLaws) {
    terngrad::law = each.name;
    each.check();
  }
  std::printf("mesh: %zu laws hold\n", std::size(terngrad::kLaws));
}
