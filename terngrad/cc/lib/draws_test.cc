// Laws of random draws.

#include <cstdint>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/philox.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace testing {
namespace {

// Known answers from Random123 (Salmon et al.).
void PhiloxGivesKnownAnswers(const Kernels&) {
  const struct {
    DrawKey key;
    uint64_t block;
    Words words;
  } answers[] = {
      {{0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~uint64_t{0}, ~0u, ~0u},
       ~uint64_t{0},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x299f31d0a4093822, 0x13198a2e, 0x03707344},
       0x85a308d3243f6a88,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& answer : answers) {
    const PhiloxBlock block = Philox(answer.key, answer.block);
    CHECK_SAME(Words(block.words, block.words + 4), answer.words);
  }
}

// From terngrad/draws.py.
void DrawsAreThoseOfPython(const Kernels&) {
  const DrawKey key = {0x0123456789ABCDEF, 0x89ABCDEF, 0xBEEFF00D};
  const struct {
    uint64_t element;
    uint32_t draw;
  } answers[] = {{0, 0xd12b32},
                 {17, 0x5d1359},
                 {47, 0xc9bdd5},
                 {129, 0x5edf87},
                 {255, 0xf15f35},
                 {300, 0x804e5f},
                 {(uint64_t{1} << 31) + 100, 0x8d55},
                 {(uint64_t{1} << 32) + 1000, 0x3778f},
                 {(uint64_t{1} << 40) + 5, 0x5354d5}};
  for (const auto& answer : answers) {
    CHECK_SAME(Draw(key, answer.element), answer.draw);
  }
}

}  // namespace

Laws DrawLaws() {
  return {
      LAW(PhiloxGivesKnownAnswers),
      LAW(DrawsAreThoseOfPython),
  };
}

}  // namespace testing
}  // namespace terngrad
