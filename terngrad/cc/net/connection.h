// One socket to another process, with the queues of its frames.

#ifndef TERNGRAD_CC_NET_CONNECTION_H_
#define TERNGRAD_CC_NET_CONNECTION_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "terngrad/cc/net/frames.h"
#include "terngrad/cc/net/socket.h"

namespace terngrad {

// Where the payload of a frame goes.
struct Place {
  enum { kHere, kNotYet, kRefused } verdict = kHere;
  uint8_t* target = nullptr;
};

// The owner of a connection, which gets its frames.
class Receiver {
 public:
  virtual ~Receiver() = default;

  // Returns where the payload goes, never null. After kNotYet the connection
  // asks again in the next call of `Receive`.
  virtual Place OnHeader(int peer, const FrameHeader& header) = 0;

  // The payload of the last header is complete; false = read no further.
  virtual bool OnPayload(int peer) = 0;
};

// Only one thread uses a connection.
class Connection {
 public:
  enum class State {
    kMore,     // there may be more to do at once
    kBlocked,  // the socket must become ready first
    kStalled,  // see Place::kNotYet
    kRefused,  // see Place::kRefused and Receiver::OnPayload
    kEnded,    // the other process has ended its side
    kBroken,   // see `error`
  };

  Connection(int peer, std::unique_ptr<Socket> socket);
  Connection(const Connection&) = delete;

  int fd() const { return socket_->fd(); }
  bool has_unsent() const {
    return partial_ || !small_.empty() || !bulk_.empty() ||
           socket_->has_unsent();
  }
  const std::string& error() const { return socket_->error(); }
  Socket::Changed changed() const { return socket_->changed(); }

  // Queues a frame, whose payload lives as long as `owner`. Small frames
  // overtake others, except in an operation's first use.
  void Queue(const FrameHeader& header, const uint8_t* payload,
             std::shared_ptr<const void> owner);

  // Sends what the socket takes: kMore, kBlocked (or nothing is left), kBroken.
  State Send();

  // Reads what has arrived, at most about a megabyte.
  State Receive(Receiver& receiver);

  // Drops the queued frames.
  void Drop();

  // Ends this process' side: it sends no more.
  void Shut();

 private:
  struct Outgoing {
    FrameHeader header;
    const uint8_t* payload;
    std::shared_ptr<const void> owner;
    size_t sent = 0;

    size_t size() const { return sizeof(header) + header.length; }
  };

  State ReceiveTurn(Receiver& receiver);
  static int Gather(const Outgoing& frame, iovec* vectors);
  void Advance(size_t octets);
  bool AdvanceFrame(Outgoing& frame, size_t& octets);
  State Read();
  State Parse(Receiver& receiver);
  void CopyStaged();

  const int peer_;
  const std::unique_ptr<Socket> socket_;

  std::optional<Outgoing> partial_;  // sent in part, so it comes first
  std::deque<Outgoing> small_;
  std::deque<Outgoing> bulk_;

  // What is read beyond the current payload: headers and small payloads.
  std::array<uint8_t, 1 << 13> staged_;
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
  FrameHeader header_;
  bool has_header_ = false;
  uint8_t* target_ = nullptr;  // of the current payload; null = not known
  size_t left_ = 0;            // bytes of it to come
  size_t read_ = 0;            // bytes in this call of `Receive`
  bool is_drained_ = false;    // the socket had no more than that
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_CONNECTION_H_
