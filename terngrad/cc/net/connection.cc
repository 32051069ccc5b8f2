#include "terngrad/cc/net/connection.h"

#include <algorithm>
#include <cstring>

namespace terngrad {
namespace {

constexpr int kVectors = 64;            // sent at once
constexpr size_t kTurnBytes = 1 << 20;  // read before others get their turn

}  // namespace

Connection::Connection(int peer, std::unique_ptr<Socket> socket)
    : peer_(peer), socket_(std::move(socket)) {}

void Connection::Queue(const FrameHeader& header, const uint8_t* payload,
                       std::shared_ptr<const void> owner) {
  // The receiver may not have declared an operation in its first use. It then
  // stops reading, so this frame must not overtake those that it waits for.
  const bool overtakes = header.length <= kSmallBytes && header.round > 0;
  auto& lane = overtakes ? small_ : bulk_;
  lane.push_back({header, payload, std::move(owner)});
}

// Writes up to two vectors; returns their number.
int Connection::Gather(const Outgoing& frame, iovec* vectors) {
  int count = 0;
  size_t skip = frame.sent;
  if (skip < sizeof(frame.header)) {
    auto* header = reinterpret_cast<const uint8_t*>(&frame.header);
    vectors[count++] = {const_cast<uint8_t*>(header) + skip,
                        sizeof(frame.header) - skip};
    skip = 0;
  } else {
    skip -= sizeof(frame.header);
  }
  if (frame.header.length > skip) {
    vectors[count++] = {const_cast<uint8_t*>(frame.payload) + skip,
                        frame.header.length - skip};
  }
  return count;
}

Connection::State Connection::Send() {
  iovec vectors[kVectors];
  int count = 0;
  if (partial_) count += Gather(*partial_, vectors);
  for (const auto* lane : {&small_, &bulk_}) {
    for (const Outgoing& frame : *lane) {
      if (count + 2 > kVectors) break;
      count += Gather(frame, vectors + count);
    }
  }
  if (!has_unsent()) return State::kBlocked;
  const ssize_t sent = socket_->Send(vectors, count);
  if (sent < 0) return error().empty() ? State::kBlocked : State::kBroken;
  size_t offered = 0;
  for (int i = 0; i < count; ++i) offered += vectors[i].iov_len;
  Advance(sent);
  const bool took_all = static_cast<size_t>(sent) == offered;
  return took_all && has_unsent() ? State::kMore : State::kBlocked;
}

// Counts octets as sent, in the order in which `Send` gathered the frames.
void Connection::Advance(size_t octets) {
  if (partial_ && AdvanceFrame(*partial_, octets)) partial_.reset();
  for (auto* lane : {&small_, &bulk_}) {
    while (octets && !lane->empty()) {
      if (!AdvanceFrame(lane->front(), octets)) {
        partial_ = std::move(lane->front());
      }
      lane->pop_front();
    }
  }
}

// Returns whether all of the frame is sent.
bool Connection::AdvanceFrame(Outgoing& frame, size_t& octets) {
  const size_t taken = std::min(octets, frame.size() - frame.sent);
  frame.sent += taken;
  octets -= taken;
  return frame.sent == frame.size();
}

Connection::State Connection::Receive(Receiver& receiver) {
  const State state = ReceiveTurn(receiver);
  if (state == State::kBlocked) {
    socket_->Expect(has_header_ ? left_ : 1);
  }
  return state;
}

Connection::State Connection::ReceiveTurn(Receiver& receiver) {
  read_ = 0;
  is_drained_ = false;
  while (true) {
    const State parsed = Parse(receiver);
    if (parsed != State::kMore) return parsed;
    if (is_drained_) return State::kBlocked;
    if (read_ >= kTurnBytes) return State::kMore;
    const State state = Read();
    if (state != State::kMore) return state;
  }
}

// Handles all frames that are complete.
Connection::State Connection::Parse(Receiver& receiver) {
  while (true) {
    if (!has_header_) {
      if (staged_end_ - staged_begin_ < sizeof(header_)) return State::kMore;
      std::memcpy(&header_, &staged_[staged_begin_], sizeof(header_));
      staged_begin_ += sizeof(header_);
      has_header_ = true;
      target_ = nullptr;
    }
    if (!target_) {
      const Place place = receiver.OnHeader(peer_, header_);
      if (place.verdict == Place::kNotYet) return State::kStalled;
      if (place.verdict == Place::kRefused) return State::kRefused;
      target_ = place.target;
      left_ = header_.length;
    }
    CopyStaged();
    if (left_) return State::kMore;
    has_header_ = false;
    if (!receiver.OnPayload(peer_)) return State::kRefused;
  }
}

void Connection::CopyStaged() {
  const size_t count = std::min(left_, staged_end_ - staged_begin_);
  std::memcpy(target_, &staged_[staged_begin_], count);
  target_ += count;
  left_ -= count;
  staged_begin_ += count;
}

// Reads the rest of a payload to its place, and what follows.
Connection::State Connection::Read() {
  const size_t kept = staged_end_ - staged_begin_;  // part of a header
  std::memmove(staged_.data(), &staged_[staged_begin_], kept);
  staged_begin_ = 0;
  staged_end_ = kept;
  const size_t payload = has_header_ ? left_ : 0;
  iovec vectors[2] = {{target_, payload},
                      {staged_.data() + kept, staged_.size() - kept}};
  const ssize_t got =
      payload ? socket_->Receive(vectors, 2) : socket_->Receive(vectors + 1, 1);
  if (got < 0) return error().empty() ? State::kBlocked : State::kBroken;
  if (got == 0) return State::kEnded;
  const size_t placed = std::min<size_t>(got, payload);
  target_ += placed;
  left_ -= placed;
  staged_end_ += got - placed;
  read_ += got;
  is_drained_ = placed < payload || staged_end_ < staged_.size();
  return State::kMore;
}

void Connection::Drop() {
  partial_.reset();
  small_.clear();
  bulk_.clear();
}

void Connection::Shut() { socket_->Shut(); }

}  // namespace terngrad
