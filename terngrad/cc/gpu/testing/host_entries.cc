#include "terngrad/cc/gpu/testing/host_entries.h"

#include <cstring>
#include <utility>

#include "terngrad/cc/gpu/encode.h"
#include "terngrad/cc/gpu/means.h"
#include "terngrad/cc/gpu/statistics.h"
#include "terngrad/cc/gpu/sum.h"
#include "terngrad/cc/gpu/warp.h"

namespace terngrad {
namespace gpu {
namespace {

template <auto KERNEL, class Types, class Places>
struct RunOf;

// `Arguments` follow the block; kernels take them by value or by reference.
template <auto KERNEL, class... Arguments, size_t... kPlaces>
struct RunOf<KERNEL, void (*)(const Block&, Arguments...),
             std::index_sequence<kPlaces...>> {
  static void Run(void** arguments, int64_t blocks, int threads) {
    for (int64_t i = 0; i < blocks; ++i) {
      KERNEL(Block(i, threads), *static_cast<const std::decay_t<Arguments>*>(
                                    arguments[kPlaces])...);
    }
  }
};

template <class... Arguments>
constexpr auto PlacesOf(void (*)(const Block&, Arguments...)) {
  return std::index_sequence_for<Arguments...>();
}

template <auto KERNEL>
constexpr HostEntry kRun =
    RunOf<KERNEL, decltype(KERNEL), decltype(PlacesOf(KERNEL))>::Run;

constexpr struct {
  const char* name;
  HostEntry run;
} kEntries[] = {
    {"terngrad_encode_1", kRun<&Encode<RandomEncoder<1>>>},
    {"terngrad_encode_2", kRun<&Encode<RandomEncoder<2>>>},
    {"terngrad_encode_3", kRun<&Encode<RandomEncoder<3>>>},
    {"terngrad_encode_7", kRun<&Encode<RandomEncoder<7>>>},
    {"terngrad_encode_127", kRun<&Encode<RandomEncoder<127>>>},
    {"terngrad_nearest_1", kRun<&Encode<NearestLevelEncoder<1>>>},
    {"terngrad_nearest_2", kRun<&Encode<NearestLevelEncoder<2>>>},
    {"terngrad_sum", kRun<&Sum>},
    {"terngrad_decode", kRun<&Decode>},
    {"terngrad_subtract", kRun<&Subtract>},
    {"terngrad_update_momentum", kRun<&UpdateVariables<Rule::kMomentum>>},
    {"terngrad_update_keras_momentum",
     kRun<&UpdateVariables<Rule::kKerasMomentum>>},
    {"terngrad_update_nesterov", kRun<&UpdateVariables<Rule::kNesterov>>},
    {"terngrad_update_adam", kRun<&UpdateVariables<Rule::kAdam>>},
    {"terngrad_update_rmsprop", kRun<&UpdateVariables<Rule::kRmsProp>>},
    {"terngrad_measure", kRun<&Measure>},
    {"terngrad_total", kRun<&Total>},
    {"terngrad_correct", kRun<&Correct>}};

}  // namespace

HostEntry FindHostEntry(const char* name) {
  for (const auto& entry : kEntries) {
    if (!std::strcmp(name, entry.name)) return entry.run;
  }
  return nullptr;
}

}  // namespace gpu
}  // namespace terngrad
