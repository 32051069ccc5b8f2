// The frames between two processes: a header, then `length` bytes.

#ifndef TERNGRAD_CC_NET_FRAMES_H_
#define TERNGRAD_CC_NET_FRAMES_H_

#include <cstdint>
#include <string_view>

namespace terngrad {

inline constexpr int64_t kChunkBytes = 1 << 18;  // most of a frame's payload
inline constexpr int64_t kSmallBytes = 1
                                       << 12;  // such payloads overtake others

// The header. All integers are little-endian, and so must the processor be.
//
// Kind, rows and planes repeat the sender's declaration of the operation, so
// that the receiver can name a difference.
struct FrameHeader {
  uint64_t key;   // of the operation's name
  uint64_t rows;  // declared
  uint32_t chunk;
  uint32_t length;
  uint32_t round;  // uses of this operation before this one, modulo 2^32
  uint8_t kind;
  uint8_t shot;
  uint8_t planes_in;
  uint8_t planes_out;
};
static_assert(sizeof(FrameHeader) == 32);

// Returns the key of an operation's name: FNV-1a.
inline uint64_t KeyOf(std::string_view name) {
  uint64_t key = 0xcbf29ce484222325;
  for (const char c : name) {
    key = (key ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return key;
}

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_FRAMES_H_
