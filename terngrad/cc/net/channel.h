// A socket to another process, plain or encrypted (tls.h).

#ifndef TERNGRAD_CC_NET_CHANNEL_H_
#define TERNGRAD_CC_NET_CHANNEL_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <string>

namespace terngrad {

// Only one thread uses a channel.
class Channel {
 public:
  // Takes ownership of a connected socket.
  explicit Channel(int fd);
  virtual ~Channel();
  Channel(const Channel&) = delete;

  int fd() const { return fd_; }

  // Takes bytes to be sent; returns their number, or -1. It sends what it took
  // before, too.
  virtual ssize_t Send(const iovec* vectors, int count);

  // Returns the number of bytes that it wrote to the vectors: 0 = the other
  // process sends nothing any more, -1 = none. Where they have more room, no
  // more has arrived.
  virtual ssize_t Receive(iovec* vectors, int count);

  // Says how many bytes are worth waking for: so many will arrive in any case.
  virtual void Expect(size_t octets);

  // Whether bytes that were taken are not with the socket yet.
  virtual bool has_unsent() const { return false; }

  // Says that this process sends nothing any more.
  virtual void Shut();

  // Where bytes went that have changed on their way: to this process, or to the
  // other one, which has said so.
  enum class Changed { kNone, kToHere, kToThere };
  virtual Changed changed() const { return Changed::kNone; }

  // Why `Send` or `Receive` returned -1; empty if the socket must become ready
  // first.
  const std::string& error() const { return error_; }

 protected:
  // Notes why a call of the system failed.
  void Note(int number);

  std::string error_;

 private:
  const int fd_;
  size_t expected_ = 1;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_CHANNEL_H_
