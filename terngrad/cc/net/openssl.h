// The functions of OpenSSL that the mesh uses, found while the program runs.
//
// So nothing is needed to build, and nothing mixes with the TLS library that is
// part of TensorFlow.

#ifndef TERNGRAD_CC_NET_OPENSSL_H_
#define TERNGRAD_CC_NET_OPENSSL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace terngrad {

// Of OpenSSL 1.1.1 and later. `void*` stands for its own types.
struct OpenSsl {
  void* (*TLS_method)();
  void* (*SSL_CTX_new)(void* method);
  void (*SSL_CTX_free)(void* context);
  long (*SSL_CTX_ctrl)(void* context, int command, long number, void* pointer);
  uint64_t (*SSL_CTX_set_options)(void* context, uint64_t options);
  int (*SSL_CTX_set_ciphersuites)(void* context, const char* names);
  int (*SSL_CTX_set_num_tickets)(void* context, size_t count);
  void (*SSL_CTX_set_default_read_buffer_len)(void* context, size_t octets);
  int (*SSL_CTX_load_verify_locations)(void* context, const char* file,
                                       const char* folder);
  int (*SSL_CTX_use_certificate_chain_file)(void* context, const char* file);
  int (*SSL_CTX_use_PrivateKey_file)(void* context, const char* file, int type);
  void (*SSL_CTX_set_verify)(void* context, int mode, void* callback);
  void* (*SSL_new)(void* context);
  void (*SSL_free)(void* session);
  void (*SSL_set_bio)(void* session, void* reads, void* writes);
  void (*SSL_set_accept_state)(void* session);
  void (*SSL_set_connect_state)(void* session);
  long (*SSL_ctrl)(void* session, int command, long number, void* pointer);
  const char* (*SSL_get_servername)(const void* session, int type);
  int (*SSL_do_handshake)(void* session);
  int (*SSL_read)(void* session, void* data, int size);
  int (*SSL_write)(void* session, const void* data, int size);
  int (*SSL_shutdown)(void* session);
  int (*SSL_key_update)(void* session, int type);
  int (*SSL_get_error)(const void* session, int result);
  long (*SSL_get_verify_result)(const void* session);
  void* (*SSL_get0_param)(void* session);
  void* (*SSL_get1_peer_certificate)(const void* session);
  int (*X509_VERIFY_PARAM_set1_host)(void* checks, const char* name,
                                     size_t size);
  int (*X509_VERIFY_PARAM_set1_ip_asc)(void* checks, const char* address);
  void (*X509_VERIFY_PARAM_set_hostflags)(void* checks, unsigned flags);
  const char* (*X509_verify_cert_error_string)(long number);
  int (*i2d_X509)(const void* certificate, uint8_t** place);
  void (*X509_free)(void* certificate);
  void* (*BIO_meth_new)(int type, const char* name);
  int (*BIO_meth_set_read)(void* method, int (*read)(void*, char*, int));
  int (*BIO_meth_set_write)(void* method,
                            int (*write)(void*, const char*, int));
  int (*BIO_meth_set_ctrl)(void* method,
                           long (*control)(void*, int, long, void*));
  void* (*BIO_new)(void* method);
  void (*BIO_set_data)(void* bio, void* data);
  void* (*BIO_get_data)(void* bio);
  void (*BIO_set_init)(void* bio, int is_ready);
  void (*BIO_set_flags)(void* bio, int flags);
  void (*BIO_clear_flags)(void* bio, int flags);
  unsigned long (*ERR_peek_error)();
  void (*ERR_clear_error)();
  const char* (*ERR_reason_error_string)(unsigned long number);
};

// Returns the functions of the first of these libraries that has them; null and
// a text if none has. The first success counts for the whole process.
const OpenSsl* FindOpenSsl(const std::vector<std::string>& libraries,
                           std::string* error);

// Returns the functions that `FindOpenSsl` has found.
const OpenSsl& TheOpenSsl();

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_OPENSSL_H_
