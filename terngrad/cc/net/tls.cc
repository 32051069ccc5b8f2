#include "terngrad/cc/net/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>

namespace terngrad {
namespace {

using Clock = std::chrono::steady_clock;

// Constants of OpenSSL.
constexpr int kSetReadAhead = 41;
constexpr int kSetSessionCacheMode = 44;
constexpr int kSetServerName = 55;
constexpr int kSetMinVersion = 123;
constexpr int kTls13 = 0x0304;
constexpr uint64_t kNoCompression = 1ull << 17;
constexpr int kPem = 1;
constexpr int kVerifyPeerAlways = 3;
constexpr unsigned kNoPartialWildcards = 0x4, kNeverCheckSubject = 0x20;
constexpr int kWantRead = 2, kZeroReturn = 6;
constexpr int kOwnBioType = 127 | 0x400;  // a source and sink
constexpr int kBioEof = 2, kBioFlush = 11;
constexpr int kBioRead = 0x1, kBioShouldRetry = 0x8, kBioRetryFlags = 0xf;

// AES-128 protects as well here, and costs less CPU time than AES-256.
constexpr char kCiphers[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_"
    "SHA256";

// Alerts of the other side, also after the handshake, about a record that has
// changed on the way.
constexpr const char* kRecordAlerts[] = {"record overflow",
                                         "unexpected message", "decode error",
                                         "protocol version"};

constexpr size_t kReadAheadBytes = 1 << 17;  // by one call of the system
constexpr size_t kOutputBytes = 1 << 16;     // likewise
constexpr size_t kTurnBytes = 1 << 20;  // taken before others get their turn
constexpr int64_t kRecordsOfKey = 1
                                  << 23;  // AES-GCM allows three times as many

}  // namespace

TlsSocket::TlsSocket(int fd) : Socket(fd), ssl_(TheOpenSsl()) {}

TlsSocket::~TlsSocket() {
  if (session_) ssl_.SSL_free(session_);
}

// ---- Handshake --------------------------------------------------------------

std::string TlsSocket::Handshake(const TlsFiles& files, const std::string& host,
                                 const std::string& name, bool is_server,
                                 double secs) {
  ssl_.ERR_clear_error();
  void* const context = NewContext(files);
  if (!context) return "the files of this process: " + Reason();
  session_ = ssl_.SSL_new(context);
  ssl_.SSL_CTX_free(context);  // the session has its own share
  void* const checks = ssl_.SSL_get0_param(session_);
  ssl_.X509_VERIFY_PARAM_set_hostflags(
      checks, kNoPartialWildcards | kNeverCheckSubject);
  in6_addr address;
  const bool is_address = inet_pton(AF_INET, host.c_str(), &address) == 1 ||
                          inet_pton(AF_INET6, host.c_str(), &address) == 1;
  const int is_set =
      is_address
          ? ssl_.X509_VERIFY_PARAM_set1_ip_asc(checks, host.c_str())
          : ssl_.X509_VERIFY_PARAM_set1_host(checks, host.data(), host.size());
  if (host.empty() || !is_set) return "'" + host + "' is not a host";
  // Never freed: sessions may use it until the process ends.
  static void* const method = [this] {
    void* const made = ssl_.BIO_meth_new(kOwnBioType, "terngrad");
    ssl_.BIO_meth_set_read(made, ReadSocket);
    ssl_.BIO_meth_set_write(made, WriteOutput);
    ssl_.BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  void* const bio = ssl_.BIO_new(method);
  ssl_.BIO_set_data(bio, this);
  ssl_.BIO_set_init(bio, 1);
  ssl_.SSL_set_bio(session_, bio, bio);
  (is_server ? ssl_.SSL_set_accept_state
             : ssl_.SSL_set_connect_state)(session_);
  if (!is_server && !name.empty()) {
    ssl_.SSL_ctrl(session_, kSetServerName, 0, const_cast<char*>(name.c_str()));
  }
  const std::string reason = Shake(secs);
  if (!reason.empty() || !is_server) return reason;
  // The client's messages are part of what both have signed.
  const char* const said = ssl_.SSL_get_servername(session_, 0);
  return name == (said ? said : "") ? ""
                                    : "it opened this TLS connection under "
                                      "another name: it belongs to "
                                      "another pair of workers or another run";
}

// Returns null, and leaves the reason with OpenSSL, if a file is not right.
void* TlsSocket::NewContext(const TlsFiles& files) {
  void* const context = ssl_.SSL_CTX_new(ssl_.TLS_method());
  // TLS 1.3 has no renegotiation.
  ssl_.SSL_CTX_ctrl(context, kSetMinVersion, kTls13, nullptr);
  ssl_.SSL_CTX_set_ciphersuites(context, kCiphers);
  ssl_.SSL_CTX_set_options(context, kNoCompression);
  ssl_.SSL_CTX_set_num_tickets(context, 0);
  ssl_.SSL_CTX_ctrl(context, kSetSessionCacheMode, 0, nullptr);
  ssl_.SSL_CTX_ctrl(context, kSetReadAhead, 1, nullptr);
  ssl_.SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  ssl_.SSL_CTX_set_verify(context, kVerifyPeerAlways, nullptr);
  const char* const ca = files.ca.c_str();
  if (ssl_.SSL_CTX_load_verify_locations(context, ca, nullptr) == 1 &&
      ssl_.SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) ==
          1 &&
      ssl_.SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), kPem) == 1) {
    return context;
  }
  ssl_.SSL_CTX_free(context);
  return nullptr;
}

std::string TlsSocket::Shake(double secs) {
  const std::chrono::duration<double> limit(secs);
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  while (true) {
    ssl_.ERR_clear_error();
    const int result = ssl_.SSL_do_handshake(session_);
    const bool is_done = result == 1;
    const bool waits =
        !is_done && ssl_.SSL_get_error(session_, result) == kWantRead;
    const std::string reason = is_done || waits ? "" : Reason();
    const Changed changed = FindChanged();
    if (!Flush() && !error_.empty()) {
      if (is_done) return error_;
      output_.clear();  // the other side may have said why it left
      sent_ = 0;
    }
    if (!reason.empty()) {
      if (changed == Changed::kNone) return reason;
      const bool is_here = changed == Changed::kToHere;
      return std::string("bytes ") + (is_here ? "from it" : "to it") +
             " have changed on the way (" + reason + ")";
    }
    if (is_done && !has_unsent()) {
      is_open_ = true;
      return "";
    }
    const std::chrono::duration<double, std::milli> left = end - Clock::now();
    if (left.count() <= 0) return "no answer";
    const short wanted = has_unsent() ? POLLOUT : POLLIN;
    pollfd events = {fd(), wanted, 0};
    poll(&events, 1, std::ceil(std::min(left.count(), 1e6)));
  }
}

// Says why a function of OpenSSL failed.
std::string TlsSocket::Reason() const {
  const long verified = session_ ? ssl_.SSL_get_verify_result(session_) : 0;
  if (verified) {
    return std::string("its certificate is refused: ") +
           ssl_.X509_verify_cert_error_string(verified);
  }
  if (has_ended_) return "it closed the connection";
  if (!error_.empty()) return error_;
  const unsigned long number = ssl_.ERR_peek_error();
  const char* const text = ssl_.ERR_reason_error_string(number);
  if (!text) return "TLS failed";
  for (const char* of_plain : {"wrong version number", "http request"}) {
    if (!is_open_ && std::strcmp(text, of_plain) == 0) {
      return "it does not use TLS";
    }
  }
  return std::string("TLS: ") + text;
}

// Returns whether the last error comes from bytes that have changed on the way.
// After the handshake there is no other reason for a bad record. An alert is
// about a record that the other side has received.
Socket::Changed TlsSocket::FindChanged() const {
  const char* const text = ssl_.ERR_reason_error_string(ssl_.ERR_peek_error());
  if (!text || has_ended_ || !error_.empty()) return Changed::kNone;
  const auto says = [text](const char* words) {
    return std::strstr(text, words) != nullptr;
  };
  const bool is_alert = says("alert");
  bool is_changed = says("bad record mac");
  if (is_open_) {
    is_changed |= !is_alert || std::any_of(std::begin(kRecordAlerts),
                                           std::end(kRecordAlerts), says);
  }
  if (!is_changed) return Changed::kNone;
  return is_alert ? Changed::kToThere : Changed::kToHere;
}

std::vector<uint8_t> TlsSocket::Certificate() const {
  void* const found = ssl_.SSL_get1_peer_certificate(session_);
  if (!found) return {};
  std::vector<uint8_t> content(std::max(0, ssl_.i2d_X509(found, nullptr)));
  uint8_t* place = content.data();
  ssl_.i2d_X509(found, &place);
  ssl_.X509_free(found);
  return content;
}

// ---- What OpenSSL calls to read and write -----------------------------------

int TlsSocket::ReadSocket(void* bio, char* data, int size) {
  const OpenSsl& ssl = TheOpenSsl();
  auto* const socket = static_cast<TlsSocket*>(ssl.BIO_get_data(bio));
  ssl.BIO_clear_flags(bio, kBioRetryFlags);
  const ssize_t got = recv(socket->fd(), data, size, 0);
  if (got < 0) {
    socket->Note(errno);
    if (socket->error_.empty()) {
      ssl.BIO_set_flags(bio, kBioRead | kBioShouldRetry);
    }
  }
  if (got == 0) socket->has_ended_ = true;
  return got;
}

int TlsSocket::WriteOutput(void* bio, const char* data, int size) {
  auto* const socket = static_cast<TlsSocket*>(TheOpenSsl().BIO_get_data(bio));
  socket->output_.insert(socket->output_.end(), data, data + size);
  return size;
}

long TlsSocket::Control(void* bio, int command, long, void*) {
  auto* const socket = static_cast<TlsSocket*>(TheOpenSsl().BIO_get_data(bio));
  if (command == kBioEof) return socket->has_ended_;
  return command == kBioFlush;
}

// ---- Data -------------------------------------------------------------------

ssize_t TlsSocket::Send(const iovec* vectors, int count) {
  size_t taken = 0, offset = 0;
  int i = 0;
  while (Flush() && i < count && taken < kTurnBytes) {
    while (i < count && output_.size() < kOutputBytes) {
      size_t filled = 0;  // of the record
      while (i < count && filled < record_.size()) {
        const auto* const data =
            static_cast<const uint8_t*>(vectors[i].iov_base);
        const size_t part =
            std::min(record_.size() - filled, vectors[i].iov_len - offset);
        std::memcpy(&record_[filled], data + offset, part);
        filled += part;
        offset += part;
        if (offset == vectors[i].iov_len) {
          ++i;
          offset = 0;
        }
      }
      if (filled && !Encrypt(record_.data(), filled)) return -1;
      taken += filled;
    }
  }
  if (!error_.empty()) return -1;
  return taken || (!count && !has_unsent()) ? taken : -1;
}

bool TlsSocket::Encrypt(const uint8_t* data, size_t size) {
  ssl_.ERR_clear_error();
  if (++records_ == kRecordsOfKey) {
    records_ = 0;
    ssl_.SSL_key_update(session_, 0);
  }
  if (ssl_.SSL_write(session_, data, size) == static_cast<int>(size)) {
    return true;
  }
  error_ = Reason();
  return false;
}

// Sends what is encrypted; returns whether nothing of it is left.
bool TlsSocket::Flush() {
  error_.clear();
  while (sent_ < output_.size()) {
    const ssize_t sent =
        send(fd(), &output_[sent_], output_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) {
      Note(errno);
      return false;
    }
    sent_ += sent;
  }
  output_.clear();
  sent_ = 0;
  return true;
}

ssize_t TlsSocket::Receive(iovec* vectors, int count) {
  error_.clear();
  size_t total = 0;
  for (int i = 0; i < count; ++i) {
    auto* const target = static_cast<uint8_t*>(vectors[i].iov_base);
    const ssize_t got = ReadInto(target, vectors[i].iov_len);
    if (got < 0) return -1;
    total += got;
    if (static_cast<size_t>(got) < vectors[i].iov_len) break;
  }
  return total || has_ended_ ? total : -1;
}

// Reads what has arrived; returns -1 for an error.
ssize_t TlsSocket::ReadInto(uint8_t* target, size_t size) {
  size_t total = 0;
  while (total < size) {
    ssl_.ERR_clear_error();
    const int limit = std::min<size_t>(size - total, 1 << 30);
    const int got = ssl_.SSL_read(session_, target + total, limit);
    if (got > 0) {
      total += got;
      continue;
    }
    const int why = ssl_.SSL_get_error(session_, got);
    if (why == kZeroReturn) has_ended_ = true;
    if (why == kWantRead || has_ended_) break;
    const std::string reason = Reason();
    changed_ = FindChanged();
    Flush();  // tells the other side
    error_ = reason;
    return -1;
  }
  return total;
}

void TlsSocket::Shut() {
  ssl_.ERR_clear_error();
  if (session_) ssl_.SSL_shutdown(session_);
  Flush();
  Socket::Shut();
}

}  // namespace terngrad
