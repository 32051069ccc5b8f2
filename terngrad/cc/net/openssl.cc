#include "terngrad/cc/net/openssl.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

namespace terngrad {
namespace {

// Returns whether a library has a function.
template <typename Function>
bool Find(void* library, const char* name, Function* place) {
  *place = reinterpret_cast<Function>(dlsym(library, name));
  return *place != nullptr;
}

// Returns the first function that a library lacks; null if it has all.
const char* Missing(void* library, OpenSsl* found) {
#define FIND(name) \
  if (!Find(library, #name, &found->name)) return #name
  FIND(TLS_method);
  FIND(SSL_CTX_new);
  FIND(SSL_CTX_free);
  FIND(SSL_CTX_ctrl);
  FIND(SSL_CTX_set_options);
  FIND(SSL_CTX_set_ciphersuites);
  FIND(SSL_CTX_set_num_tickets);
  FIND(SSL_CTX_set_default_read_buffer_len);
  FIND(SSL_CTX_load_verify_locations);
  FIND(SSL_CTX_use_certificate_chain_file);
  FIND(SSL_CTX_use_PrivateKey_file);
  FIND(SSL_CTX_set_verify);
  FIND(SSL_new);
  FIND(SSL_free);
  FIND(SSL_set_bio);
  FIND(SSL_set_accept_state);
  FIND(SSL_set_connect_state);
  FIND(SSL_ctrl);
  FIND(SSL_get_servername);
  FIND(SSL_do_handshake);
  FIND(SSL_read);
  FIND(SSL_write);
  FIND(SSL_shutdown);
  FIND(SSL_key_update);
  FIND(SSL_get_error);
  FIND(SSL_get_verify_result);
  FIND(SSL_get0_param);
  FIND(X509_VERIFY_PARAM_set1_host);
  FIND(X509_VERIFY_PARAM_set1_ip_asc);
  FIND(X509_VERIFY_PARAM_set_hostflags);
  FIND(X509_verify_cert_error_string);
  FIND(i2d_X509);
  FIND(X509_free);
  FIND(BIO_meth_new);
  FIND(BIO_meth_set_read);
  FIND(BIO_meth_set_write);
  FIND(BIO_meth_set_ctrl);
  FIND(BIO_new);
  FIND(BIO_set_data);
  FIND(BIO_get_data);
  FIND(BIO_set_init);
  FIND(BIO_set_flags);
  FIND(BIO_clear_flags);
  FIND(ERR_peek_error);
  FIND(ERR_clear_error);
  FIND(ERR_reason_error_string);
#undef FIND
  auto* const certificate = &found->SSL_get1_peer_certificate;
  if (Find(library, "SSL_get1_peer_certificate", certificate) ||
      Find(library, "SSL_get_peer_certificate", certificate)) {  // 1.1.1
    return nullptr;
  }
  return "SSL_get1_peer_certificate";
}

std::atomic<const OpenSsl*> chosen{nullptr};

}  // namespace

const OpenSsl& TheOpenSsl() { return *chosen; }

const OpenSsl* FindOpenSsl(const std::vector<std::string>& libraries,
                           std::string* error) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  *error = "there is no OpenSSL 1.1.1 or later";
  for (const std::string& name : libraries) {
    if (chosen) break;
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    // Never freed, as the library is never closed: threads may still use it
    // when the process ends.
    auto* const found = new OpenSsl;
    const char* const missing = Missing(library, found);
    if (!missing) {
      chosen = found;
    } else {
      *error += ": " + name + " has no " + missing;
      delete found;
      dlclose(library);
    }
  }
  if (chosen) error->clear();
  return chosen;
}

}  // namespace terngrad
