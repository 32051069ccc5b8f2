#include "terngrad/cc/net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace terngrad {
namespace {

// Bytes in the kernel that are not on the wire yet: small frames wait for them.
constexpr int kUnsentBytes = 1 << 19;

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  // These fail for sockets of another kind, as tests use them.
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes,
             sizeof(kUnsentBytes));
}

Socket::~Socket() { close(fd_); }

ssize_t Socket::Send(const iovec* vectors, int count) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(vectors);
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
  if (sent < 0) Note(errno);
  return sent;
}

ssize_t Socket::Receive(iovec* vectors, int count) {
  const ssize_t got = readv(fd_, vectors, count);
  if (got < 0) Note(errno);
  return got;
}

void Socket::Expect(size_t octets) {
  if (octets == expected_) return;
  expected_ = octets;
  // Before Linux 4.18 a buffer did not grow for what is expected: the other
  // side may not send more than its window, about half of the buffer.
  int buffer = 0;
  socklen_t size = sizeof(buffer);
  getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer, &size);
  const int low_water = std::clamp<int64_t>(buffer / 4, 1, octets);
  setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof(low_water));
}

void Socket::Shut() { shutdown(fd_, SHUT_WR); }

void Socket::Note(int number) {
  const bool is_blocked =
      number == EAGAIN || number == EWOULDBLOCK || number == EINTR;
  error_ = is_blocked ? "" : std::strerror(number);
}

}  // namespace terngrad
