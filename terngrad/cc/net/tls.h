// A socket with TLS 1.3, of which both sides show a certificate.

#ifndef TERNGRAD_CC_NET_TLS_H_
#define TERNGRAD_CC_NET_TLS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "terngrad/cc/net/openssl.h"
#include "terngrad/cc/net/socket.h"

namespace terngrad {

// PEM files: the authority's certificate, that of this process, and its key.
struct TlsFiles {
  std::string ca;
  std::string cert;
  std::string key;
};

class TlsSocket : public Socket {
 public:
  // Takes ownership of a socket. Call `FindOpenSsl` before, and `Handshake`
  // after.
  explicit TlsSocket(int fd);
  ~TlsSocket() override;

  // Makes the handshake, for at most `secs`. The other side must have a
  // certificate of the authority for `host`, a name or an address. One side is
  // the server. Both must give the connection the same `name`, at most 255
  // bytes. Returns why it failed; empty if it did not.
  std::string Handshake(const TlsFiles& files, const std::string& host,
                        const std::string& name, bool is_server, double secs);

  // The certificate of the other side, in DER.
  std::vector<uint8_t> Certificate() const;

  ssize_t Send(const iovec* vectors, int count) override;
  ssize_t Receive(iovec* vectors, int count) override;
  void Expect(size_t) override {}  // records have other sizes
  bool has_unsent() const override { return sent_ < output_.size(); }
  void Shut() override;
  Changed changed() const override { return changed_; }

 private:
  static constexpr size_t kRecordBytes = 1 << 14;  // most of a record

  static int ReadSocket(void* bio, char* data, int size);
  static int WriteOutput(void* bio, const char* data, int size);
  static long Control(void* bio, int command, long number, void* pointer);

  void* NewContext(const TlsFiles& files);
  std::string Shake(double secs);
  std::string Reason() const;
  Changed FindChanged() const;
  ssize_t ReadInto(uint8_t* target, size_t size);
  bool Encrypt(const uint8_t* data, size_t size);
  bool Flush();

  const OpenSsl& ssl_;
  void* session_ = nullptr;
  bool is_open_ = false;  // the handshake is done
  Changed changed_ = Changed::kNone;
  bool has_ended_ = false;                    // the other side sends no more
  std::vector<uint8_t> output_;               // encrypted
  size_t sent_ = 0;                           // bytes of it
  int64_t records_ = 0;                       // with the present key
  std::array<uint8_t, kRecordBytes> record_;  // gathered for one record
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_TLS_H_
