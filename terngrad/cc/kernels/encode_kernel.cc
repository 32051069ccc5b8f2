#include <vector>

#include "terngrad/cc/kernels/common.h"

namespace terngrad {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShapeUtils;

constexpr int64_t kIds = int64_t{1} << 16;  // allowed for variables and nodes

class EncodeOp : public PathOpKernel {
 public:
  explicit EncodeOp(OpKernelConstruction* context) : PathOpKernel(context) {
    int n;
    OP_REQUIRES_OK(context, context->GetAttr("n", &n));
    OP_REQUIRES_OK(context, context->GetAttr("variables", &variables_));
    OP_REQUIRES_OK(context, context->GetAttr("firsts", &firsts_));
    if (firsts_.empty()) firsts_.resize(n, 0);
    for (const std::vector<int64_t>* list : {&variables_, &firsts_}) {
      OP_REQUIRES(context, static_cast<int>(list->size()) == n,
                  Invalid("variables or firsts has ", list->size(),
                          " entries; allowed are n = ", n));
    }
    for (int64_t variable : variables_) {
      OP_REQUIRES(
          context, variable >= 0 && variable < kIds,
          Invalid("variable is ", variable, "; allowed are 0 to ", kIds - 1));
    }
    for (int64_t first : firsts_) {
      OP_REQUIRES(
          context, first >= 0,
          Invalid("first element is ", first, "; allowed are 0 and more"));
    }
  }

  void Compute(OpKernelContext* context) override {
    NodeKey key;
    std::vector<Source> sources;
    int64_t elements = 0;
    ReadKey(context, &key);
    if (context->status().ok()) ReadSources(context, &sources, &elements);
    if (!context->status().ok()) return;

    const int64_t rows = WordsOf(elements);
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, {rows, 2}, &output));
    uint32_t* words = output->flat<uint32_t>().data();
    constexpr int64_t kCycles = 2 * kWordBits;
    Split(context, rows, kCycles, [&](int64_t begin, int64_t end) {
      kernels().encode(sources.data(), sources.size(), key, begin, end, words);
    });
  }

 private:
  static void ReadKey(OpKernelContext* context, NodeKey* key) {
    const Tensor *seed, *step, *node;
    OP_REQUIRES_OK(context, context->input("seed", &seed));
    OP_REQUIRES_OK(context, context->input("step", &step));
    OP_REQUIRES_OK(context, context->input("node", &node));
    for (const Tensor* scalar : {seed, step, node}) {
      OP_REQUIRES(context, TensorShapeUtils::IsScalar(scalar->shape()),
                  Invalid("seed, step and node must be scalars; one has shape ",
                          scalar->shape().DebugString()));
    }
    const int32_t index = node->scalar<int32_t>()();
    OP_REQUIRES(context, index >= 0 && index < kIds,
                Invalid("node is ", index, "; allowed are 0 to ", kIds - 1));
    *key = {seed->scalar<uint64_t>()(),
            static_cast<uint32_t>(step->scalar<int64_t>()()),
            static_cast<uint32_t>(index)};
  }

  void ReadSources(OpKernelContext* context, std::vector<Source>* sources,
                   int64_t* elements) const {
    OpInputList gradients;
    const Tensor *bounds, *scales;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, context->input("bounds", &bounds));
    OP_REQUIRES_OK(context, context->input("scales", &scales));
    const int n = gradients.size();
    for (const Tensor* vector : {bounds, scales}) {
      OP_REQUIRES(
          context,
          TensorShapeUtils::IsVector(vector->shape()) &&
              vector->NumElements() == n,
          Invalid("shape of bounds or scales is ",
                  vector->shape().DebugString(), "; allowed is [", n, "]"));
    }
    for (int i = 0; i < n; ++i) {
      const int64_t size = gradients[i].NumElements();
      sources->push_back({gradients[i].flat<float>().data(), size, firsts_[i],
                          static_cast<uint32_t>(variables_[i]),
                          bounds->vec<float>()(i), scales->vec<float>()(i)});
      *elements += size;
    }
  }

  std::vector<int64_t> variables_;
  std::vector<int64_t> firsts_;
};

REGISTER_KERNEL_BUILDER(Name("TerngradEncode").Device(tensorflow::DEVICE_CPU),
                        EncodeOp);

}  // namespace
}  // namespace terngrad
