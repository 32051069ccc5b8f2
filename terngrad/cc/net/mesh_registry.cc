#include "terngrad/cc/net/mesh_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "terngrad/cc/net/tls.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace terngrad {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<Mesh>> meshes;
  int64_t next = 1;
};

// Never destroyed: a mesh that was not closed may use it until the process
// ends.
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

std::vector<std::string> Lines(const char* text) {
  std::vector<std::string> lines(1);
  for (; *text; ++text) {
    if (*text == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += *text;
    }
  }
  return lines;
}

void Write(const std::string& text, char* place, int64_t size) {
  const int64_t count = std::min<int64_t>(text.size(), size - 1);
  std::copy_n(text.data(), count, place);
  place[count] = 0;
}

}  // namespace

std::shared_ptr<Mesh> FindMesh(int64_t mesh) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.meshes.find(mesh);
  return found == registry.meshes.end() ? nullptr : found->second;
}

}  // namespace terngrad

// Returns the number of a new mesh of process `rank`; `names` has a line for
// each process.
EXPORTED int64_t terngrad_mesh_new(int rank, const char* names) {
  auto mesh = std::make_shared<terngrad::Mesh>(rank, terngrad::Lines(names));
  terngrad::Registry& registry = terngrad::TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.meshes[registry.next] = std::move(mesh);
  return registry.next++;
}

// Gives the mesh, before its start, a socket to another process.
EXPORTED void terngrad_mesh_add(int64_t mesh, int peer, int socket) {
  terngrad::FindMesh(mesh)->AddConnection(
      peer, std::make_unique<terngrad::Socket>(socket));
}

// Takes a socket and encrypts it; see TlsSocket::Handshake. `files` are three
// lines, `libraries` may be OpenSSL. Writes the certificate of the other side
// and returns its size, -1 and a text if the handshake failed.
EXPORTED int64_t terngrad_tls_open(int socket, const char* libraries,
                                   const char* files, const char* host,
                                   const char* name, int is_server, double secs,
                                   terngrad::TlsSocket** opened,
                                   uint8_t* certificate,
                                   int64_t certificate_size, char* error,
                                   int64_t error_size) {
  std::string text;
  *opened = nullptr;
  if (!terngrad::FindOpenSsl(terngrad::Lines(libraries), &text)) {
    terngrad::Socket owner(socket);  // closes it
    terngrad::Write(text, error, error_size);
    return -1;
  }
  auto made = std::make_unique<terngrad::TlsSocket>(socket);
  const auto lines = terngrad::Lines(files);
  text = made->Handshake({lines[0], lines[1], lines[2]}, host, name, is_server,
                         secs);
  const auto found =
      text.empty() ? made->Certificate() : std::vector<uint8_t>();
  if (text.empty() && found.size() > static_cast<size_t>(certificate_size)) {
    text = "its certificate has " + std::to_string(found.size()) + " bytes";
  }
  terngrad::Write(text, error, error_size);
  if (!text.empty()) return -1;
  std::copy(found.begin(), found.end(), certificate);
  *opened = made.release();
  return found.size();
}

// Closes an encrypted socket that no mesh has.
EXPORTED void terngrad_tls_close(terngrad::TlsSocket* socket) { delete socket; }

// As terngrad_mesh_add, with an encrypted socket.
EXPORTED void terngrad_mesh_add_encrypted(int64_t mesh, int peer,
                                          terngrad::TlsSocket* socket) {
  terngrad::FindMesh(mesh)->AddConnection(
      peer, std::unique_ptr<terngrad::Socket>(socket));
}

EXPORTED void terngrad_mesh_start(int64_t mesh) {
  terngrad::FindMesh(mesh)->Start();
}

// Returns the index of an operation, -1 and a text if it cannot be declared.
// For codes, `path` names the kernels that add.
EXPORTED int terngrad_mesh_declare(int64_t mesh, const char* name, int kind,
                                   int64_t rows, int64_t largest_in,
                                   int64_t largest_out, const char* path,
                                   char* error, int64_t error_size) {
  const auto found = terngrad::FindMesh(mesh);
  if (!found) {
    terngrad::Write("the mesh is closed", error, error_size);
    return -1;
  }
  terngrad::Declaration declaration{name, static_cast<terngrad::Kind>(kind),
                                    rows, largest_in, largest_out};
  if (terngrad::HasCodes(declaration.kind)) {
    declaration.kernels = terngrad::FindKernels(path);
    const auto fits = [](int64_t largest) {
      return largest >= 1 && largest <= terngrad::kMaxSum;
    };
    if (!declaration.kernels || !fits(largest_in) || !fits(largest_out)) {
      terngrad::Write("codes of magnitudes " + std::to_string(largest_in) +
                          " and " + std::to_string(largest_out) +
                          " on the path '" + path + "' cannot be added here",
                      error, error_size);
      return -1;
    }
  }
  std::string text;
  const int index = found->Declare(declaration, &text);
  terngrad::Write(text, error, error_size);
  return index;
}

// Writes the bytes of payloads that were sent and received so far.
EXPORTED void terngrad_mesh_bytes(int64_t mesh, int64_t* both) {
  const auto found = terngrad::FindMesh(mesh);
  both[0] = found ? found->bytes_sent() : 0;
  both[1] = found ? found->bytes_received() : 0;
}

// Ends all operations of a mesh, also later ones, with this text.
EXPORTED void terngrad_mesh_fail(int64_t mesh, const char* text) {
  if (const auto found = terngrad::FindMesh(mesh)) found->Fail(text);
}

// Sends what is queued, for at most `secs`, and ends. The mesh keeps its
// number.
EXPORTED void terngrad_mesh_end(int64_t mesh, double secs) {
  if (const auto found = terngrad::FindMesh(mesh)) found->Close(secs);
}

// Returns 0 if the operations of a mesh do not fail, 2 if they do because
// another process broke a rule, 3 if a step of this process ended before them,
// else 1. Writes the reason.
EXPORTED int terngrad_mesh_failure(int64_t mesh, char* text, int64_t size) {
  const auto found = terngrad::FindMesh(mesh);
  const std::string why = found ? found->failure() : "the mesh is closed";
  terngrad::Write(why, text, size);
  if (why.empty()) return 0;
  if (found && found->was_cancelled()) return 3;
  return found && found->was_refused() ? 2 : 1;
}

// Gives mesh `other` the number of another one that has ended, for the ops of
// graphs that know this number. It must have the same operations.
EXPORTED void terngrad_mesh_replace(int64_t mesh, int64_t other) {
  std::shared_ptr<terngrad::Mesh> ended;  // destroyed without the lock
  terngrad::Registry& registry = terngrad::TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  ended = std::move(registry.meshes[mesh]);
  registry.meshes[mesh] = std::move(registry.meshes[other]);
  registry.meshes.erase(other);
}

// Sends what is queued, for at most `secs`, and ends. The number is free then.
EXPORTED void terngrad_mesh_close(int64_t mesh, double secs) {
  const auto found = terngrad::FindMesh(mesh);
  if (!found) return;
  found->Close(secs);
  terngrad::Registry& registry = terngrad::TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.meshes.erase(mesh);
}
