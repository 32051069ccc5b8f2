// Encodes a bucket for a mesh's operation, which sends parts meanwhile.

#ifndef TERNGRAD_CC_KERNELS_ENCODING_H_
#define TERNGRAD_CC_KERNELS_ENCODING_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/sources.h"
#include "terngrad/cc/kernels/spans.h"
#include "terngrad/cc/net/mesh.h"

namespace terngrad {

// The bucket that an op encodes: `gradients` hold the memory of the sources.
// Codes go to `codes`, its output and the input of the mesh's operation.
struct Bucket {
  Sources sources;
  std::vector<tensorflow::Tensor> gradients;
  tensorflow::Tensor codes;
};

inline absl::Status ReadBucket(tensorflow::OpKernelContext* context,
                               const SourcesReader& reader, Bucket* bucket) {
  TF_RETURN_IF_ERROR(reader.Read(context, &bucket->sources));
  tensorflow::OpInputList inputs;
  TF_RETURN_IF_ERROR(context->input_list("gradients", &inputs));
  bucket->gradients.assign(inputs.begin(), inputs.end());
  tensorflow::Tensor* output;
  const int64_t rows = WordsOf(bucket->sources.elements);
  TF_RETURN_IF_ERROR(context->allocate_output(
      "codes", tensorflow::TensorShape({rows, bucket->sources.planes}),
      &output));
  bucket->codes = *output;
  return absl::OkStatus();
}

// Encodes a bucket part by part, on the threads of a pool, and offers each part
// to the mesh, which sends it while the next one is encoded.
class Encoding : public std::enable_shared_from_this<Encoding> {
 public:
  Encoding(std::shared_ptr<Mesh> mesh, int operation, const Plan& plan,
           Bucket bucket)
      : mesh_(std::move(mesh)),
        operation_(operation),
        name_(plan.declaration().name),
        kernels_(plan.declaration().kernels),
        bucket_(std::move(bucket)) {
    const int rank = mesh_->rank();
    for (const int to : plan.Receivers(rank)) {
      const Range range = plan.Sent(0, rank, to);
      for (uint32_t chunk = 0; chunk < range.chunks; ++chunk) {
        const int64_t first = range.First(chunk);
        parts_.push_back({to, chunk, first, first + range.Count(chunk)});
      }
    }
  }

  // Encodes the parts for this use of the operation, which adds codes.
  void Begin(uint64_t use, tensorflow::thread::ThreadPool* threads) {
    use_ = use;
    threads_ = threads;
    const int parts = parts_.size();
    const int count = std::min(threads->NumThreads(), parts);
    for (int i = 0; i < count; ++i) Continue();
  }

 private:
  struct Part {
    int to;
    uint32_t chunk;
    int64_t begin, end;  // groups of codes
  };

  // A thread of the pool runs a task of its own before those that others give
  // it, such as decoding: what is sent early travels meanwhile.
  void Continue() {
    if (next_ >= parts_.size()) return;
    threads_->Schedule([self = shared_from_this()] { self->EncodeNext(); });
  }

  void EncodeNext() {
    const size_t i = next_++;
    if (i >= parts_.size()) return;
    const Part& part = parts_[i];
    Encode(part.begin, part.end);
    if (mesh_->Offer(use_, operation_, part.to, part.chunk)) Continue();
  }

  void Encode(int64_t begin, int64_t end) {
    const tsl::profiler::TraceMe traced(
        [this] { return SpanName(name_, "TerngradEncode"); });
    const tensorflow::port::ScopedFlushDenormal flush;
    terngrad::Encode(*kernels_, bucket_.sources, begin, end,
                     bucket_.codes.flat<uint32_t>().data());
  }

  const std::shared_ptr<Mesh> mesh_;
  const int operation_;
  const std::string name_;  // of the operation
  const Kernels* const kernels_;
  Bucket bucket_;
  std::vector<Part> parts_;
  uint64_t use_ = 0;
  tensorflow::thread::ThreadPool* threads_ = nullptr;
  std::atomic<size_t> next_{0};
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_ENCODING_H_
