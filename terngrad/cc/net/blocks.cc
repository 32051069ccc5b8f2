#include "terngrad/cc/net/blocks.h"

#include <utility>

namespace terngrad {

Blocks::Block Blocks::Take(size_t octets) {
  int size_class = 0;
  while (kLeast << size_class < octets) ++size_class;
  auto& free = free_[size_class];
  const GiveBack give_back(this, size_class);
  if (free.empty()) {
    return Block(new uint8_t[kLeast << size_class], give_back);
  }
  Block block(free.back().release(), give_back);
  free.pop_back();
  return block;
}

void Blocks::Give(uint8_t* block, int size_class) {
  std::unique_ptr<uint8_t[]> freed(block);
  auto& free = free_[size_class];
  if (free.size() < kKept) free.push_back(std::move(freed));
}

}  // namespace terngrad
