// Laws of the codes that pack planes.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/testing/arrays.h"
#include "terngrad/cc/lib/testing/checks.h"
#include "terngrad/cc/lib/testing/laws.h"
#include "terngrad/cc/lib/testing/numbers.h"

namespace terngrad {
namespace testing {
namespace {

using Octets = std::vector<uint8_t>;

// Returns integers in planes: sums of `largest` codes, of which a share
// `density` is not zero, or, where there are many levels, integers of which so
// many differ from zero by a random spread.
Words SomeIntegers(int64_t rows, int largest, double density, Random& random) {
  std::bernoulli_distribution is_nonzero(density);
  Integers values(kWordBits * rows);
  if (largest > 31) {
    const int64_t spread = 1 + random() % largest;
    for (int64_t& value : values) {
      if (!is_nonzero(random)) continue;
      const int64_t bound = random() % 8 ? spread : largest;
      value = static_cast<int64_t>(random() % (2 * bound + 1)) - bound;
    }
    return PlanesOf(values, PlaneCount(largest));
  }
  for (int64_t& value : values) {
    for (int i = 0; i < largest; ++i) {
      if (is_nonzero(random)) value += random() % 2 ? 1 : -1;
    }
  }
  return PlanesOf(values, PlaneCount(largest));
}

// Adds a stream of bits: whole words of 64.
void Append(const std::vector<bool>& bits, Octets* octets) {
  const size_t first = octets->size();
  octets->resize(first + (bits.size() + 63) / 64 * 8);
  for (size_t i = 0; i < bits.size(); ++i) {
    (*octets)[first + i / 8] |= bits[i] << i % 8;
  }
}

// Says bit by bit what terngrad/prefix_code.py says of streams of codes.
Octets NaivePack(const Words& words) {
  const Integers values = IntegersOf(words, PlaneCount(1));
  std::vector<bool> filled, several, place, fours, nonzero, negative;
  for (size_t i = 0; i < values.size(); i += 4) {
    std::vector<bool> quad;
    for (int j = 0; j < 4; ++j) quad.push_back(values[i + j] != 0);
    const auto count = std::count(quad.begin(), quad.end(), true);
    nonzero.insert(nonzero.end(), quad.begin(), quad.end());
    filled.push_back(count > 0);
    if (count > 0) several.push_back(count > 1);
    if (count > 1) fours.insert(fours.end(), quad.begin(), quad.end());
    if (count == 1) {
      const auto at = std::find(quad.begin(), quad.end(), true) - quad.begin();
      place.push_back(at & 1);
      place.push_back(at & 2);
    }
  }
  Octets quads, ones, packed(8);
  for (const auto& each : {filled, several, place, fours}) Append(each, &quads);
  Append(nonzero, &ones);
  packed[0] = quads.size() > ones.size();
  const Octets& where = packed[0] ? ones : quads;
  packed.insert(packed.end(), where.begin(), where.end());
  for (const int64_t value : values) {
    if (value) negative.push_back(value < 0);
  }
  Append(negative, &packed);
  const auto* raw = reinterpret_cast<const uint8_t*>(words.data());
  const size_t size = words.size() * sizeof(uint32_t);
  return packed.size() < size ? packed : Octets(raw, raw + size);
}

Octets Pack(const Kernels& kernels, const Words& words, int largest) {
  const int64_t rows = words.size() / PlaneCount(largest);
  Octets packed(words.size() * sizeof(uint32_t));
  packed.resize(kernels.pack(words.data(), largest, rows, packed.data()));
  return packed;
}

void CheckComesBack(const Kernels& kernels, const Octets& packed, int largest,
                    int64_t rows, const Words& words) {
  Words back(words.size(), kGuardWord);
  CHECK(
      kernels.unpack(packed.data(), packed.size(), largest, rows, back.data()));
  CHECK_SAME(back, words);
}

void ThePrefixCodeIsThatOfItsFormat(const Kernels& kernels) {
  Random random(11);
  for (const double density : {0.0, 0.02, 0.15, 0.4, 1.0}) {
    for (const int64_t rows : {0, 1, 2, 5, 8, 63, 64, 65, 300}) {
      Try("density %g, %d rows", density, static_cast<int>(rows));
      const Words words = SomeIntegers(rows, 1, density, random);
      const Octets packed = Pack(kernels, words, 1);
      const Octets naive = NaivePack(words);
      CHECK_SAME(Words(packed.begin(), packed.end()),
                 Words(naive.begin(), naive.end()));
      CheckComesBack(kernels, packed, 1, rows, words);
    }
  }
}

void WhatIsPackedComesBack(const Kernels& kernels) {
  Random random(13);
  for (const int largest : {1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127,
                            508, 2032, kMaxSum}) {
    for (const double density : {0.0, 0.003, 0.1, 0.4, 0.97, 1.0}) {
      for (const int64_t rows : {1, 2, 7, 511, 512, 513, 1025}) {
        Try("largest %d, density %g, %d rows", largest, density,
            static_cast<int>(rows));
        const Words words = SomeIntegers(rows, largest, density, random);
        const Octets packed = Pack(kernels, words, largest);
        const Octets same = Pack(*PortableKernels(), words, largest);
        CHECK_SAME(Words(packed.begin(), packed.end()),
                   Words(same.begin(), same.end()));
        CheckComesBack(kernels, packed, largest, rows, words);
      }
    }
  }
}

// The example of docs/wire-format.md.
void TheDocumentedBytesArePacked(const Kernels& kernels) {
  Integers values(12 * kWordBits);
  values[2] = values[9] = 1, values[8] = values[383] = -1;
  const Octets packed = Pack(kernels, PlanesOf(values, 2), 1);
  Octets expected(56);
  expected[8] = 5, expected[19] = 0x80;  // quads 0, 2 and 95
  expected[24] = 2;                      // several in the second of these
  expected[32] = 0x0e;                   // places 2 and 3
  expected[40] = 3;                      // the first two of quad 2
  expected[48] = 0x0a;                   // signs
  CHECK_SAME(Words(packed.begin(), packed.end()),
             Words(expected.begin(), expected.end()));
}

void BytesOfNoCodeAreRefusedOrGiveIntegersInRange(const Kernels& kernels) {
  Random random(12);
  int codes = 0;
  for (int round = 0; round < 3000; ++round) {
    const int largest =
        std::vector<int>{1, 2, 4, 9, 31, 32, 100, 127, 2032}[random() % 9];
    Try("round %d, largest %d", round, largest);
    const int64_t rows = 1 + random() % (round % 10 ? 70 : 1200);
    const double density = round % 4 ? 0.1 : 0.9;
    const Words words = SomeIntegers(rows, largest, density, random);
    Octets packed = Pack(kernels, words, largest);
    if (round % 3 == 0) {
      packed.resize(random() % (packed.size() + 9));
    } else {
      for (int i = 0; i < round % 7; ++i) {
        packed[random() % packed.size()] ^= 1 << random() % 8;
      }
    }
    Words back(words.size());
    const Octets exact(packed);  // with no room behind it
    if (!kernels.unpack(exact.data(), exact.size(), largest, rows,
                        back.data())) {
      continue;
    }
    if (packed.size() == words.size() * sizeof(uint32_t)) continue;  // planes
    ++codes;
    for (const int64_t value : IntegersOf(back, PlaneCount(largest))) {
      CHECK(std::abs(value) <= largest);
    }
  }
  CHECK(codes > 300);
}

}  // namespace

Laws PrefixCodeLaws() {
  return {
      LAW(ThePrefixCodeIsThatOfItsFormat),
      LAW(WhatIsPackedComesBack),
      LAW(TheDocumentedBytesArePacked),
      LAW(BytesOfNoCodeAreRefusedOrGiveIntegersInRange),
  };
}

}  // namespace testing
}  // namespace terngrad
