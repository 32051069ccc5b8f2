// Laws of what a connection's other end sends, and of one that reads late.

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/net/frames.h"
#include "terngrad/cc/net/mesh.h"
#include "terngrad/cc/net/socket.h"
#include "terngrad/cc/net/testing/group.h"
#include "terngrad/cc/net/testing/laws.h"
#include "terngrad/cc/net/testing/operations.h"
#include "terngrad/cc/net/testing/use.h"

namespace terngrad {
namespace testing {
namespace {

// A mesh of two processes, of which the test is one.
struct Alone {
  Alone() : mesh(0, Names(2)) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    mesh.AddConnection(1, std::make_unique<Socket>(pair[0]));
    other = pair[1];
    mesh.Start();
    std::string error;
    floats = mesh.Declare(Bytes("floats", Kind::kFloats, 100), &error);
    gather = mesh.Declare(Bytes("gather", Kind::kGather, 1000), &error);
    codes = mesh.Declare(Codes("codes", 50, 1, 2), &error);
  }
  ~Alone() { close(other); }

  // Sends bytes; the mesh may have closed the socket.
  void Send(const void* data, size_t octets) {
    [[maybe_unused]] const ssize_t sent =
        send(other, data, octets, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  Mesh mesh;
  int other;
  int floats;
  int gather;
  int codes;
};

FrameHeader Good(const std::string& name, Kind kind, uint64_t rows,
                 uint32_t octets) {
  FrameHeader header = {};
  header.key = KeyOf(name);
  header.rows = rows;
  header.length = octets;
  header.kind = static_cast<uint8_t>(kind);
  return header;
}

void InvalidFramesAreRefused() {
  struct {
    const char* what;
    void (*spoil)(FrameHeader&);
  } const spoilt[] = {
      {"rows there", [](FrameHeader& h) { h.rows = 1ull << 60; }},
      {"kind 77", [](FrameHeader& h) { h.kind = 77; }},
      {"chunk 1 ", [](FrameHeader& h) { h.chunk = 1; }},
      {"chunk 4294967295 ", [](FrameHeader& h) { h.chunk = ~0u; }},
      {"399 bytes", [](FrameHeader& h) { h.length = 399; }},
      {"4294967295 bytes", [](FrameHeader& h) { h.length = ~0u; }},
      {"shot 1", [](FrameHeader& h) { h.shot = 1; }},
      {"shot 255", [](FrameHeader& h) { h.shot = 255; }},
      {"use 2 ", [](FrameHeader& h) { h.round = 2; }},
      {"use 4294967295 ", [](FrameHeader& h) { h.round = ~0u; }},
      {"planes_in", [](FrameHeader& h) { h.planes_in = 1; }},
  };
  for (const auto& each : spoilt) {
    Alone alone;
    Use use(alone.mesh, alone.floats, RandomFloats(100));
    FrameHeader header = Good("floats", Kind::kFloats, 100, 400);
    each.spoil(header);
    alone.Send(&header, sizeof(header));
    const std::string failure = use.Failure();
    CHECK(Contains(failure, "worker 1: "));
    if (std::string(each.what) != "planes_in") {
      CHECK(Contains(failure, each.what));
    }
  }
  Alone alone;
  Use use(alone.mesh, alone.gather, RandomOctets(1000));
  const FrameHeader header = Good("floats", Kind::kFloats, 100, 400);
  const auto payload = RandomFloats(100);
  for (int i = 0; i < 2; ++i) {
    alone.Send(&header, sizeof(header));
    alone.Send(payload.data(), payload.size());
  }
  CHECK(Contains(use.Failure(), "worker 1: it sent a chunk of floats twice"));
}

FrameHeader GoodCodes(uint32_t octets) {
  FrameHeader header = Good("codes", Kind::kCodes, 50, octets);
  header.planes_in = 2;
  header.planes_out = 3;
  return header;
}

void CodesOfAnImpossibleSizeAreRefused() {
  for (const uint32_t octets : {401u, ~0u}) {  // 400 in planes
    Alone alone;
    Use use(alone.mesh, alone.codes, RandomCodes(50, 1));
    const FrameHeader header = GoodCodes(octets);
    alone.Send(&header, sizeof(header));
    CHECK(Contains(use.Failure(), "worker 1: it sent chunk 0 of codes with " +
                                      std::to_string(octets) + " bytes"));
  }
}

void BytesOfNoCodeAreRefused() {
  for (const bool early : {false, true}) {
    for (const uint32_t octets : {0, 7, 8, 64, 399}) {
      Alone alone;
      const FrameHeader header = GoodCodes(octets);
      const std::vector<uint8_t> payload(octets, 0xFF);
      const auto send = [&] {
        alone.Send(&header, sizeof(header));
        alone.Send(payload.data(), octets);
      };
      if (early) send();
      Use use(alone.mesh, alone.codes, RandomCodes(50, 1));
      if (!early) send();
      CHECK(Contains(use.Failure(),
                     "worker 1: it sent chunk 0 of codes, which cannot be "
                     "decoded"));
    }
  }
}

// A payload of all zeros: 8 bytes that say quads, 56 for 400 quads.
void GoodCodesAreTaken() {
  for (const bool early : {false, true}) {
    Alone alone;
    const FrameHeader header = GoodCodes(64);
    const std::vector<uint8_t> payload(64);
    const auto send = [&] {
      alone.Send(&header, sizeof(header));
      alone.Send(payload.data(), payload.size());
    };
    const auto mine = RandomCodes(50, 1);
    if (early) send();
    Use use(alone.mesh, alone.codes, mine);
    if (!early) send();
    std::vector<uint32_t> words(50 * 3), own(50 * 2);
    std::memcpy(words.data(), use.Output().data(), 4 * words.size());
    std::memcpy(own.data(), mine.data(), mine.size());
    for (int g = 0; g < 50; ++g) {
      CHECK(words[3 * g] == own[2 * g]);
      CHECK(words[3 * g + 1] == own[2 * g + 1]);
      CHECK(words[3 * g + 2] == own[2 * g + 1]);
    }
  }
}

// Whole, cut and changed frames in any order end well or with a name.
void RandomBytesGiveAResultOrNameTheSender() {
  for (int i = 0; i < 300; ++i) {
    Alone alone;
    Use use(alone.mesh, alone.floats, RandomFloats(100));
    std::vector<uint8_t> stream;
    for (int j = 0; j < 6; ++j) {
      FrameHeader header = Good("floats", Kind::kFloats, 100, 400);
      if (generator() % 2) header = Good("gather", Kind::kGather, 1000, 1000);
      header.round = generator() % 2;
      auto* octets = reinterpret_cast<uint8_t*>(&header);
      if (generator() % 4 == 0)
        octets[generator() % 32] ^= 1 << generator() % 8;
      stream.insert(stream.end(), octets, octets + sizeof(header));
      const auto payload = RandomFloats(header.length % 4096 / 4);
      stream.insert(stream.end(), payload.begin(), payload.end());
    }
    alone.Send(stream.data(), generator() % (stream.size() + 1));
    shutdown(alone.other, SHUT_WR);
    const std::string failure = use.Failure();
    CHECK(failure.empty() || Contains(failure, "worker 1"));
  }
}

void ASlowReaderGetsAll() {
  Group group(2, false);
  const int index = group.Declare(Bytes("x", Kind::kGather, 5 << 20));
  const int small = group.Declare(Bytes("small", Kind::kGather, 100));
  group.meshes[0]->Start();
  Use first(*group.meshes[0], index, RandomOctets(5 << 20));
  Use early(*group.meshes[0], small, RandomOctets(100));
  usleep(100000);
  group.meshes[1]->Start();
  Use second(*group.meshes[1], index, RandomOctets(5 << 20));
  Use late(*group.meshes[1], small, RandomOctets(100));
  CHECK(first.Output() == second.Output());
  CHECK(early.Output() == late.Output());
}

}  // namespace

Laws ConnectionLaws() {
  return {
      LAW(InvalidFramesAreRefused),
      LAW(CodesOfAnImpossibleSizeAreRefused),
      LAW(BytesOfNoCodeAreRefused),
      LAW(GoodCodesAreTaken),
      LAW(RandomBytesGiveAResultOrNameTheSender),
      LAW(ASlowReaderGetsAll),
  };
}

}  // namespace testing
}  // namespace terngrad
