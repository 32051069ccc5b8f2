#include "terngrad/cc/net/mesh.h"

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "terngrad/cc/lib/flushing.h"

namespace terngrad {
namespace {

constexpr int kEvents = 64;
constexpr int kLingerMs = 20;        // polling interval while closing
constexpr uint64_t kWakeUp = ~0ull;  // data of the event that wakes the thread

std::string WhyUnwatched(int error) {
  return std::string("its sockets cannot be watched: ") + std::strerror(error);
}

}  // namespace

Mesh::Mesh(int rank, std::vector<std::string> names)
    : rank_(rank),
      size_(names.size()),
      names_(std::move(names)),
      connections_(size_),
      watched_(size_),
      has_left_(size_),
      is_stalled_(size_),
      has_more_(size_),
      is_ready_(size_),
      incoming_(size_),
      parts_(size_) {
  for (int i = 1; i < size_; ++i) others_.push_back((rank_ + i) % size_);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ >= 0) wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) {
    Fail(WhyUnwatched(errno));
  } else {
    Add(wake_, EPOLLIN, kWakeUp);
  }
}

Mesh::~Mesh() {
  Close(0);
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
}

// Lets epoll watch a descriptor.
void Mesh::Add(int fd, uint32_t events, uint64_t data) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = data;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    Fail(WhyUnwatched(errno));
  }
}

void Mesh::AddConnection(int peer, std::unique_ptr<Socket> socket) {
  const int fd = socket->fd();
  connections_[peer] = std::make_unique<Connection>(peer, std::move(socket));
  has_more_[peer] = true;  // TLS may have read frames with the handshake
  watched_[peer] = EPOLLIN | EPOLLRDHUP;
  Add(fd, watched_[peer], peer);
}

void Mesh::Start() {
  if (!failure().empty()) return;
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "terngrad_mesh");
}

// ---- Calls of other threads -------------------------------------------------

uint64_t Mesh::Submit(Submission submission) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t use = submission.use = ++uses_;
  if (failure_.empty()) {
    submitted_.push_back(std::move(submission));
    Wake();
    return use;
  }
  const std::string failure = failure_;
  lock.unlock();
  submission.done(failure);
  return use;
}

bool Mesh::Offer(uint64_t use, int operation, int to, uint32_t chunk) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.empty()) return false;
  offered_.push_back({use, operations_[operation].get(), to, chunk});
  Wake();
  return true;
}

void Mesh::Fail(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = text;
  Wake();
}

void Mesh::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) {
    was_cancelled_ = true;
    failure_ = "a step ended before its operations between the workers";
  }
  Wake();
}

std::string Mesh::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Mesh::Close(double secs) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
    const std::chrono::duration<double> wait(secs);
    close_by_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
    Wake();
  }
  if (thread_.joinable()) thread_.join();
}

// Call it with the lock.
void Mesh::Wake() {
  if (has_news_) return;
  has_news_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

// ---- The thread -------------------------------------------------------------

void Mesh::Run() {
  // Sums of floats must not depend on the engine.
  const Flushing flushing(true);
  epoll_event events[kEvents];
  while (!IsOver(Clock::now())) {
    const int count = epoll_wait(epoll_, events, kEvents, WaitMs());
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWakeUp) {
        TakeSubmissions();
      } else {
        Handle(events[i].data.u64, events[i].events);
      }
    }
    ReceiveMore();
    SendAll();
  }
  FailAll("the connection to the other workers is closed");
  for (const auto& connection : connections_) {
    if (connection) connection->Shut();
  }
  connections_.clear();
}

int Mesh::WaitMs() const {
  const bool is_busy =
      std::find(has_more_.begin(), has_more_.end(), true) != has_more_.end();
  if (is_busy && !has_failed_) return 0;
  return is_closing_ ? kLingerMs : -1;
}

// Whether all is sent, or the time for it is over, after `Close`.
bool Mesh::IsOver(Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_closing_) return false;
  if (has_failed_ || now >= close_by_) return true;
  return submitted_.empty() && offered_.empty() &&
         std::none_of(connections_.begin(), connections_.end(),
                      [](const auto& c) { return c && c->has_unsent(); });
}

void Mesh::TakeSubmissions() {
  std::vector<Submission> taken;
  std::vector<Part> offered;
  std::string failure;
  std::vector<Operation*> operations;
  {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
    const std::lock_guard<std::mutex> lock(mutex_);
    has_news_ = false;
    taken.swap(submitted_);
    offered.swap(offered_);
    failure = failure_;
    for (const Submission& submission : taken) {
      operations.push_back(operations_[submission.operation].get());
    }
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    Operation& operation = *operations[i];
    Round& round = operation.rounds[operation.done & 1];
    if (round.is_submitted) {
      taken[i].done(operation.plan.declaration().name + " is not done yet");
      continue;
    }
    Prepare(operation, round);
    round.is_submitted = true;
    round.submission = std::move(taken[i]);
    if (!has_failed_ && failure.empty()) Begin(operation);
  }
  if (has_failed_ || !failure.empty()) FailAll(failure);
  for (const Part& part : offered) {
    const Round& round = part.operation->rounds[part.operation->done & 1];
    if (has_failed_ || round.submission.use != part.use) continue;
    TakePart(part);
    FinishIfDone(*part.operation);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (is_stalled_[peer]) Receive(peer);
  }
}

void Mesh::Handle(int peer, uint32_t events) {
  const bool is_gone = events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP);
  if (has_failed_ || has_left_[peer]) return;
  if (events & EPOLLOUT) is_ready_[peer] = true;
  if (is_stalled_[peer] && is_gone) {
    FailAll(names_[peer] + " closed its connection");
  } else if (is_gone || events & EPOLLIN) {
    Receive(peer);
  }
}

void Mesh::Receive(int peer) {
  Connection& connection = *connections_[peer];
  if (has_failed_ || has_left_[peer]) return;
  const Connection::State state = connection.Receive(*this);
  is_stalled_[peer] = state == Connection::State::kStalled;
  has_more_[peer] = state == Connection::State::kMore;
  if (state == Connection::State::kBroken) {
    FailAll(WhyBroken(peer));
  } else if (state == Connection::State::kEnded) {
    Leave(peer);
  } else if (!has_failed_) {
    Watch(peer);
  }
}

// Continues with sockets that had more. epoll may not know about them: the
// bytes may have arrived, but not be decrypted yet.
void Mesh::ReceiveMore() {
  for (int peer = 0; peer < size_; ++peer) {
    if (has_more_[peer]) Receive(peer);
  }
}

// Sends from all queues: one call takes all small frames of this turn.
void Mesh::SendAll() {
  for (int i = 1; i < size_ && !has_failed_; ++i) {
    const int peer = (rank_ + i) % size_;
    Connection& connection = *connections_[peer];
    const bool is_blocked = watched_[peer] & EPOLLOUT;
    if (!connection.has_unsent() || (is_blocked && !is_ready_[peer])) continue;
    is_ready_[peer] = false;
    Connection::State state;
    do {
      state = connection.Send();
    } while (state == Connection::State::kMore);
    if (state == Connection::State::kBroken) {
      const std::string why = WhyBroken(peer);
      Receive(peer);  // the reason may have arrived before
      FailAll(why);
      return;
    }
    Watch(peer);
  }
}

// Watches a socket for what can happen next.
void Mesh::Watch(int peer) {
  if (has_left_[peer]) return;  // its socket is watched no more
  Connection& connection = *connections_[peer];
  uint32_t wanted = EPOLLRDHUP;
  if (connection.has_unsent()) wanted |= EPOLLOUT;
  if (!is_stalled_[peer]) wanted |= EPOLLIN;
  if (wanted == watched_[peer]) return;
  epoll_event event = {};
  event.events = watched_[peer] = wanted;
  event.data.u64 = peer;
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd(), &event) != 0) {
    FailAll(WhyUnwatched(errno));
  }
}

// ---- Ends -------------------------------------------------------------------

// Notes that a process has ended its side: then it needs no more data either.
void Mesh::Leave(int peer) {
  has_left_[peer] = true;
  connections_[peer]->Drop();
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connections_[peer]->fd(), nullptr);
  std::vector<const Operation*> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& operation : operations_) all.push_back(operation.get());
  }
  for (const Operation* operation : all) FailIfLeft(*operation);
}

// Fails if a process has left that an operation still needs.
void Mesh::FailIfLeft(const Operation& operation) {
  const Round& round = operation.rounds[operation.done & 1];
  for (int peer = 0; peer < size_ && !has_failed_; ++peer) {
    if (has_left_[peer] && round.is_submitted && round.missing[peer]) {
      FailAll(names_[peer] + " closed its connection");
    }
  }
}

bool Mesh::Refuse(int peer, const std::string& why) {
  if (!has_failed_) was_refused_ = true;
  FailAll(names_[peer] + ": " + why);
  return false;
}

// Names the process at the other end or, where neither process is to blame, the
// connection: terngrad/connect/tls.py has the same text.
std::string Mesh::WhyBroken(int peer) const {
  const Connection& connection = *connections_[peer];
  if (connection.changed() == Socket::Changed::kNone) {
    return names_[peer] + ": " + connection.error();
  }
  const bool is_here = connection.changed() == Socket::Changed::kToHere;
  const std::string& from = names_[is_here ? peer : rank_];
  const std::string& to = names_[is_here ? rank_ : peer];
  return "the connection from " + from + " to " + to +
         ": bytes have changed on the way (" + connection.error() + ")";
}

// Fails all operations. If there was a failure before, that is the reason.
void Mesh::FailAll(const std::string& text) {
  std::vector<Submission> failed;
  std::string failure;
  has_failed_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = text;
    failure = failure_;
    failed.swap(submitted_);
    for (const auto& operation : operations_) {
      for (Round& round : operation->rounds) {
        if (!round.is_submitted) continue;
        round.is_submitted = false;
        failed.push_back(std::move(round.submission));
        round.submission = {};
      }
    }
  }
  for (const auto& connection : connections_) {
    if (!connection) continue;
    connection->Drop();
    epoll_ctl(epoll_, EPOLL_CTL_DEL, connection->fd(), nullptr);
  }
  for (const Submission& submission : failed) submission.done(failure);
}

}  // namespace terngrad
