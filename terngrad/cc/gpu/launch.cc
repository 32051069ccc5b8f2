#include "terngrad/cc/gpu/launch.h"

#include <utility>
#include <vector>

#include "terngrad/cc/gpu/entries.h"

namespace terngrad {
namespace gpu {
namespace {

// Of code that is too new for the driver: machine code, then PTX.
constexpr Status kInvalidImage = 200;
constexpr Status kNoBinaryForGpu = 209;
constexpr Status kInvalidPtx = 218;
constexpr Status kUnsupportedPtxVersion = 222;

// Scratch memory begins with the table.
int64_t TableEnd(int64_t table_bytes) { return (table_bytes + 7) / 8 * 8; }

template <class Item>
std::vector<Item> WithOffsets(const Item* items, int64_t count) {
  std::vector<Item> table(items, items + count);
  int64_t offset = 0;
  for (Item& item : table) {
    item.offset = offset;
    offset += item.size;
  }
  return table;
}

std::vector<Planes> WithOffsets(const Planes* inputs, int64_t count) {
  return std::vector<Planes>(inputs, inputs + count);
}

int64_t BucketBlocks(int64_t rows) { return BlocksOf(rows, kBlockRows); }

}  // namespace

class Gpu::Current {
 public:
  explicit Current(const Gpu& gpu) : driver_(gpu.driver_) {
    error_ = Describe(driver_, "the GPU cannot be used",
                      driver_.cuCtxPushCurrent_v2(gpu.context_));
  }
  ~Current() {
    void* context;
    if (error_.empty()) driver_.cuCtxPopCurrent_v2(&context);
  }
  const std::string& error() const { return error_; }

 private:
  const Driver& driver_;
  std::string error_;
};

std::string Gpu::Open(const char* library, int ordinal,
                      std::unique_ptr<Gpu>* gpu) {
  Driver driver;
  std::string error = OpenDriver(library, &driver);
  if (!error.empty()) return error;
  const std::string name = "GPU " + std::to_string(ordinal);
  const auto described = [&](Status status) {
    return Describe(driver, name.c_str(), status);
  };
  int device = 0, major = 0, minor = 0;
  error = described(driver.cuDeviceGet(&device, ordinal));
  if (!error.empty()) return error;
  for (const auto& [attribute, value] : {std::pair(kCapabilityMajor, &major),
                                         std::pair(kCapabilityMinor, &minor)}) {
    error = described(driver.cuDeviceGetAttribute(value, attribute, device));
    if (!error.empty()) return error;
  }
  void* context = nullptr;
  error = described(driver.cuDevicePrimaryCtxRetain(&context, device));
  if (!error.empty()) return error;
  gpu->reset(new Gpu(driver, device, context, 10 * major + minor));
  return "";
}

Gpu::~Gpu() {
  if (module_) {
    const Current current(*this);
    if (current.error().empty()) driver_.cuModuleUnload(module_);
  }
  driver_.cuDevicePrimaryCtxRelease_v2(device_);
}

std::string Gpu::Load(const void* code) {
  const Current current(*this);
  if (!current.error().empty()) return current.error();
  const Status status = driver_.cuModuleLoadData(&module_, code);
  if (status == kInvalidImage || status == kNoBinaryForGpu ||
      status == kInvalidPtx || status == kUnsupportedPtxVersion) {
    int version = 0;
    driver_.cuDriverGetVersion(&version);
    const std::string number = std::to_string(version / 1000) + "." +
                               std::to_string(version % 1000 / 10);
    return Describe(driver_,
                    ("the driver, of CUDA " + number +
                     ", cannot load the kernels; it may be older than the "
                     "NVRTC that compiled them")
                        .c_str(),
                    status);
  }
  return Describe(driver_, "the kernels cannot be loaded", status);
}

std::string Gpu::Launch(const char* entry, int64_t blocks, int threads,
                        void** arguments, Stream stream) const {
  if (blocks == 0) return "";
  void* function = nullptr;
  const std::string error = Describe(
      driver_, entry, driver_.cuModuleGetFunction(&function, module_, entry));
  if (!error.empty()) return error;
  return Describe(
      driver_, entry,
      driver_.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1,
                             static_cast<unsigned>(threads), 1, 1, 0, stream,
                             arguments, nullptr));
}

std::string Gpu::Upload(const void* from, int64_t bytes, void* to,
                        Stream stream) const {
  if (bytes == 0) return "";
  const Current current(*this);
  if (!current.error().empty()) return current.error();
  // A graph would copy from the host's memory at each replay, when it is gone.
  int capture = kNotCapturing;
  const std::string error =
      Describe(driver_, "the state of the stream",
               driver_.cuStreamIsCapturing(stream, &capture));
  if (!error.empty()) return error;
  if (capture != kNotCapturing) {
    return "the stream is being captured; a CUDA graph cannot hold these calls";
  }
  return Describe(driver_, "a copy to the GPU",
                  driver_.cuMemcpyHtoDAsync_v2(reinterpret_cast<Address>(to),
                                               from, bytes, stream));
}

std::string Gpu::Copy(const void* from, int64_t bytes, void* to,
                      Stream stream) const {
  if (bytes == 0) return "";
  const Current current(*this);
  if (!current.error().empty()) return current.error();
  return Describe(driver_, "a copy on the GPU",
                  driver_.cuMemcpyDtoDAsync_v2(reinterpret_cast<Address>(to),
                                               reinterpret_cast<Address>(from),
                                               bytes, stream));
}

template <class Item>
std::string Gpu::RunWithTable(const char* entry, const Item* items,
                              int64_t count, int64_t blocks, void** arguments,
                              int place_of_table, const Place& place) const {
  if (count == 0 || blocks == 0) return "";
  const Current current(*this);
  if (!current.error().empty()) return current.error();
  const std::vector<Item> table = WithOffsets(items, count);
  void* memory = place.scratch;
  const std::string error =
      Upload(table.data(), TableBytes<Item>(count), memory, place.stream);
  if (!error.empty()) return error;
  arguments[place_of_table] = &memory;
  return Launch(entry, blocks, kThreads, arguments, place.stream);
}

int64_t Gpu::StatsBytes(const Gradient* gradients, int64_t count) {
  int64_t bytes = TableEnd(TableBytes<Measured>(count));
  for (int64_t i = 0; i < count; ++i) {
    const Gradient& gradient = gradients[i];
    bytes += TableEnd(ScratchBytes(PiecesOf(gradient.size, gradient.parts)));
  }
  return bytes;
}

std::string Gpu::Stats(const Gradient* gradients, int64_t count, float* sums,
                       float* squares, float* max_abs,
                       const Place& place) const {
  if (count == 0) return "";
  const Current current(*this);
  if (!current.error().empty()) return current.error();
  std::vector<Measured> table;
  void* memory = place.scratch;
  char* free =
      static_cast<char*>(memory) + TableEnd(TableBytes<Measured>(count));
  int64_t pieces = 0, totals = 0, parts = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Gradient& gradient = gradients[i];
    const Pieces own = PiecesOf(gradient.size, gradient.parts);
    table.push_back({gradient.values, gradient.size, gradient.parts, own,
                     pieces, totals, parts, free, gradient.type});
    pieces += PieceBlocks(own);
    totals += TotalBlocks(own, gradient.parts);
    parts += gradient.parts.count;
    free += TableEnd(ScratchBytes(own));
  }
  const std::string error =
      Upload(table.data(), TableBytes<Measured>(count), memory, place.stream);
  if (!error.empty()) return error;
  void* arguments[] = {&memory, &count, &sums, &squares, &max_abs};
  const std::string failed = Launch("terngrad_measure", pieces, kPieceThreads,
                                    arguments, place.stream);
  if (!failed.empty()) return failed;
  return Launch("terngrad_total", totals, kTotalThreads, arguments,
                place.stream);
}

std::string Gpu::Encode(const char* encoder, const Source* sources,
                        int64_t count, const NodeKey& key, int64_t rows,
                        uint32_t* words, const Place& place) const {
  const char* const entry = EntryOfEncoder(encoder);
  if (!entry) return std::string("there is no encoder ") + encoder;
  NodeKey copy = key;
  void* arguments[] = {nullptr, &count, &copy, &rows, &words};
  return RunWithTable(entry, sources, count, BucketBlocks(rows), arguments, 0,
                      place);
}

std::string Gpu::Sum(const Planes* inputs, int64_t count, int planes,
                     int64_t rows, uint32_t* total, const Place& place) const {
  void* arguments[] = {nullptr, &count, &planes, &rows, &total};
  return RunWithTable("terngrad_sum", inputs, count, BlocksOf(rows, kThreads),
                      arguments, 0, place);
}

std::string Gpu::Decode(const Planes& sums, const Target* targets,
                        int64_t count, const UnitRule& units, int64_t rows,
                        const Place& place) const {
  Planes planes = sums;
  UnitRule rule = units;
  void* arguments[] = {&planes, nullptr, &count, &rule, &rows};
  return RunWithTable("terngrad_decode", targets, count, BucketBlocks(rows),
                      arguments, 1, place);
}

std::string Gpu::Subtract(const Planes& codes, const Kept* variables,
                          int64_t count, const UnitRule& units, int64_t rows,
                          const Place& place) const {
  Planes planes = codes;
  UnitRule rule = units;
  void* arguments[] = {&planes, nullptr, &count, &rule, &rows};
  return RunWithTable("terngrad_subtract", variables, count, BucketBlocks(rows),
                      arguments, 1, place);
}

std::string Gpu::ApplyUpdate(const Planes& sums, const Trained* variables,
                             int64_t count, const Update& update,
                             const UnitRule& units, int64_t rows,
                             const Place& place) const {
  Planes planes = sums;
  Update copy = update;
  UnitRule rule = units;
  void* arguments[] = {&planes, nullptr, &count, &copy, &rule, &rows};
  return RunWithTable(EntryOfRule(update.rule), variables, count,
                      BucketBlocks(rows), arguments, 1, place);
}

std::string Gpu::Correct(const Corrected* variables, int64_t count,
                         int64_t rows, const Place& place) const {
  void* arguments[] = {nullptr, &count, &rows};
  return RunWithTable("terngrad_correct", variables, count, BucketBlocks(rows),
                      arguments, 0, place);
}

}  // namespace gpu
}  // namespace terngrad
