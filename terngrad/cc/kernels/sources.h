// The inputs and attributes of the ops that write codes.

#ifndef TERNGRAD_CC_KERNELS_SOURCES_H_
#define TERNGRAD_CC_KERNELS_SOURCES_H_

#include <string>
#include <vector>

#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/parts.h"

namespace terngrad {

// The gradients of a bucket, the key of their draws, and how they are encoded.
// The items point to bounds and rates.
struct Sources {
  NodeKey key;
  NumbersOfParts bounds;
  NumbersOfParts rates;
  std::vector<Source> items;
  int64_t elements = 0;
  std::string encoder;  // a name that FindEncoder knows
  int planes;           // of its codes
};

// Encodes groups [begin, end) of 32 elements.
inline void Encode(const Kernels& kernels, const Sources& sources,
                   int64_t begin, int64_t end, uint32_t* words) {
  FindEncoder(kernels, sources.encoder.c_str())
      ->encode(sources.items.data(), sources.items.size(), sources.key, begin,
               end, words);
}

// Reads the attributes and inputs of an op that writes codes.
class SourcesReader {
 public:
  // Reads the attributes `n`, `parts`, `variables`, `encoder` and `antithetic`.
  explicit SourcesReader(tensorflow::OpKernelConstruction* context)
      : parts_(context) {
    int n;
    OP_REQUIRES_OK(context, context->GetAttr("n", &n));
    OP_REQUIRES_OK(context, context->GetAttr("variables", &variables_));
    OP_REQUIRES(context, static_cast<int>(variables_.size()) == n,
                Invalid("variables has ", variables_.size(),
                        " entries; allowed are n = ", n));
    for (int64_t variable : variables_) {
      OP_REQUIRES(
          context, variable >= 0 && variable < kIds,
          Invalid("variable is ", variable, "; allowed are 0 to ", kIds - 1));
    }
    OP_REQUIRES_OK(context, context->GetAttr("encoder", &encoder_));
    const Encoder* const encoder =
        FindEncoder(*PortableKernels(), encoder_.c_str());
    OP_REQUIRES(context, encoder, Invalid("there is no encoder ", encoder_));
    max_code_ = encoder->max_code;
    OP_REQUIRES_OK(context, context->GetAttr("antithetic", &antithetic_));
  }

  // Reads the inputs `gradients`, `bounds`, `scales`, `seed`, `step` and
  // `node`. It returns errors, so that asynchronous ops can use it, too: in
  // these OP_REQUIRES would end the process.
  absl::Status Read(tensorflow::OpKernelContext* context,
                    Sources* sources) const {
    TF_RETURN_IF_ERROR(ReadKey(context, &sources->key));
    tensorflow::OpInputList gradients;
    const float *all_bounds, *all_scales;
    TF_RETURN_IF_ERROR(context->input_list("gradients", &gradients));
    TF_RETURN_IF_ERROR(ReadNumbers(context, "bounds", &all_bounds));
    TF_RETURN_IF_ERROR(ReadNumbers(context, "scales", &all_scales));
    sources->encoder = encoder_;
    sources->planes = planes();
    sources->bounds =
        NumbersOfParts(parts_, [&](int64_t part) { return all_bounds[part]; });
    sources->rates = NumbersOfParts(parts_, [&](int64_t part) {
      return RateOf(all_scales[part], max_code_);
    });
    for (int i = 0; i < gradients.size(); ++i) {
      const int64_t size = gradients[i].NumElements();
      sources->items.push_back({gradients[i].flat<float>().data(), size, 0,
                                static_cast<uint32_t>(variables_[i]), parts_[i],
                                sources->bounds[i], sources->rates[i]});
      sources->elements += size;
    }
    return absl::OkStatus();
  }

  // Finds the numbers of an input that has one for each part.
  absl::Status ReadNumbers(tensorflow::OpKernelContext* context,
                           const char* name, const float** numbers) const {
    const tensorflow::Tensor* vector;
    TF_RETURN_IF_ERROR(context->input(name, &vector));
    if (!tensorflow::TensorShapeUtils::IsVector(vector->shape()) ||
        vector->NumElements() != parts_.total()) {
      return Invalid("shape of ", name, " is ", vector->shape().DebugString(),
                     "; allowed is [", parts_.total(), "]");
    }
    *numbers = vector->vec<float>().data();
    return absl::OkStatus();
  }

  // Reads the inputs `seed`, `step` and `node`.
  absl::Status ReadKey(tensorflow::OpKernelContext* context,
                       NodeKey* key) const {
    const tensorflow::Tensor *seed, *step, *node;
    TF_RETURN_IF_ERROR(context->input("seed", &seed));
    TF_RETURN_IF_ERROR(context->input("step", &step));
    TF_RETURN_IF_ERROR(context->input("node", &node));
    for (const tensorflow::Tensor* scalar : {seed, step, node}) {
      if (!tensorflow::TensorShapeUtils::IsScalar(scalar->shape())) {
        return Invalid("seed, step and node must be scalars; one has shape ",
                       scalar->shape().DebugString());
      }
    }
    const int32_t index = node->scalar<int32_t>()();
    if (index < 0 || index >= kIds) {
      return Invalid("node is ", index, "; allowed are 0 to ", kIds - 1);
    }
    *key = {seed->scalar<uint64_t>()(),
            static_cast<uint32_t>(step->scalar<int64_t>()()),
            static_cast<uint32_t>(index), antithetic_};
    return absl::OkStatus();
  }

  const PartsOfVariables& parts() const { return parts_; }
  const std::string& encoder() const { return encoder_; }
  int planes() const { return PlaneCount(max_code_); }
  uint32_t variable(int i) const { return variables_[i]; }

 private:
  static constexpr int64_t kIds = int64_t{1} << 16;  // of variables and nodes

  const PartsOfVariables parts_;
  std::vector<int64_t> variables_;
  std::string encoder_;
  int max_code_ = 0;
  bool antithetic_ = false;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_KERNELS_SOURCES_H_
