// A socket to another process, plain or encrypted (tls.h).

#ifndef TERNGRAD_CC_NET_SOCKET_H_
#define TERNGRAD_CC_NET_SOCKET_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <string>

namespace terngrad {

// Only one thread uses a socket.
class Socket {
 public:
  // Takes ownership of a connected socket.
  explicit Socket(int fd);
  virtual ~Socket();
  Socket(const Socket&) = delete;

  int fd() const { return fd_; }

  // Accepts bytes to send; returns their number, or -1. It also sends bytes
  // that it accepted before.
  virtual ssize_t Send(const iovec* vectors, int count);

  // Returns the number of bytes that it wrote to the vectors: 0 = the other
  // process has ended its side, -1 = none. If there is room left in them, no
  // more has arrived.
  virtual ssize_t Receive(iovec* vectors, int count);

  // Sets the number of bytes to wake up for: at least as many will arrive.
  virtual void Expect(size_t octets);

  // Whether accepted bytes are not written to the socket yet.
  virtual bool has_unsent() const { return false; }

  // Ends this process' side: it sends no more.
  virtual void Shut();

  // The direction in which bytes have changed on their way: to this process, or
  // to the other one, which has reported it.
  enum class Changed { kNone, kToHere, kToThere };
  virtual Changed changed() const { return Changed::kNone; }

  // Why `Send` or `Receive` returned -1; empty if the socket must become ready
  // first.
  const std::string& error() const { return error_; }

 protected:
  // Notes why a system call failed.
  void Note(int number);

  std::string error_;

 private:
  const int fd_;
  size_t expected_ = 1;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_SOCKET_H_
