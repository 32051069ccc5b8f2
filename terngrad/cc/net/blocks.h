// Memory for payloads and rows of frames: at most twice their size, and kept.

#ifndef TERNGRAD_CC_NET_BLOCKS_H_
#define TERNGRAD_CC_NET_BLOCKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "terngrad/cc/net/frames.h"

namespace terngrad {

// Blocks of at most kChunkBytes. Their sizes are powers of two, so that a freed
// block fits a later frame. Only one thread uses them and what they gave.
class Blocks {
 public:
  // Freed blocks that are kept, of each size: 64 MiB together.
  static constexpr size_t kKept = 128;

  // Returns a block, which goes back to where it is from.
  class GiveBack {
   public:
    GiveBack() = default;
    GiveBack(Blocks* from, int size_class)
        : from_(from), size_class_(size_class) {}
    void operator()(uint8_t* block) const { from_->Give(block, size_class_); }

   private:
    Blocks* from_ = nullptr;
    int size_class_ = 0;
  };
  // Null, or memory that lives as long as the Blocks at most.
  using Block = std::unique_ptr<uint8_t[], GiveBack>;

  // Returns a block for this many bytes, never null; 0 is allowed.
  Block Take(size_t octets);

 private:
  static constexpr size_t kLeast = 64;  // bytes
  static constexpr int kClasses =
      __builtin_ctzll(kChunkBytes) - __builtin_ctzll(kLeast) + 1;

  void Give(uint8_t* block, int size_class);

  std::array<std::vector<std::unique_ptr<uint8_t[]>>, kClasses> free_;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_BLOCKS_H_
