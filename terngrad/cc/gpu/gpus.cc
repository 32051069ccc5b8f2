#include "terngrad/cc/gpu/gpus.h"

#include <map>
#include <mutex>
#include <utility>

namespace terngrad {
namespace gpu {
namespace {

struct Gpus {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Gpu>> by_ordinal;
};

// Never destroyed: ops may run while the process ends.
Gpus& All() {
  static Gpus* const gpus = new Gpus;
  return *gpus;
}

}  // namespace

void RegisterGpu(int ordinal, std::unique_ptr<Gpu> gpu) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().by_ordinal.emplace(ordinal, std::move(gpu));
}

const Gpu* FindGpu(int ordinal) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().by_ordinal.find(ordinal);
  return found == All().by_ordinal.end() ? nullptr : found->second.get();
}

}  // namespace gpu
}  // namespace terngrad
