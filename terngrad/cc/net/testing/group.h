// Several processes' meshes in one process, for tests of the mesh.

#ifndef TERNGRAD_CC_NET_TESTING_GROUP_H_
#define TERNGRAD_CC_NET_TESTING_GROUP_H_

#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/mesh.h"
#include "terngrad/cc/net/socket.h"
#include "terngrad/cc/net/tls.h"

namespace terngrad {
namespace testing {

inline constexpr double kTimeoutSecs = 60;

inline std::vector<std::string> Names(int size) {
  std::vector<std::string> names;
  for (int i = 0; i < size; ++i) names.push_back("worker " + std::to_string(i));
  return names;
}

inline TlsFiles tls_files;  // of the certificate; empty = plain sockets

// Returns the two ends of a connection.
inline std::array<std::unique_ptr<Socket>, 2> Pair() {
  int pair[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  if (tls_files.ca.empty()) {
    return {std::make_unique<Socket>(pair[0]),
            std::make_unique<Socket>(pair[1])};
  }
  auto one = std::make_unique<TlsSocket>(pair[0]);
  auto two = std::make_unique<TlsSocket>(pair[1]);
  const auto shake = [](TlsSocket* socket, bool is_server) {
    CHECK(socket
              ->Handshake(tls_files, "127.0.0.1", "a to b", is_server,
                          kTimeoutSecs)
              .empty());
  };
  std::thread server(shake, one.get(), true);
  shake(two.get(), false);
  server.join();
  return {std::move(one), std::move(two)};
}

// P meshes, each joined to all others.
struct Group {
  explicit Group(int size, bool start = true) {
    for (int i = 0; i < size; ++i) {
      meshes.push_back(std::make_unique<Mesh>(i, Names(size)));
    }
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < i; ++j) {
        auto pair = Pair();
        meshes[i]->AddConnection(j, std::move(pair[0]));
        meshes[j]->AddConnection(i, std::move(pair[1]));
      }
    }
    for (auto& mesh : meshes) {
      if (start) mesh->Start();
    }
  }

  int Declare(const Declaration& declaration) {
    int index = -1;
    for (auto& mesh : meshes) {
      std::string error;
      index = mesh->Declare(declaration, &error);
      CHECK(error.empty());
    }
    return index;
  }

  int size() const { return meshes.size(); }

  std::vector<std::unique_ptr<Mesh>> meshes;
};

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_TESTING_GROUP_H_
