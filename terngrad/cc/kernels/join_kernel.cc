#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/net/meshes.h"

namespace terngrad {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Keeps memory until all of it is sent. While somebody holds a tensor, no other
// op writes to it.
struct Held {
  Tensor input;
  Tensor output;
};

class JoinOp : public AsyncOpKernel {
 public:
  explicit JoinOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("mesh", &mesh_));
    OP_REQUIRES_OK(context, context->GetAttr("operation", &operation_));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = FindMesh(mesh_);
    OP_REQUIRES_ASYNC(context, mesh != nullptr,
                      absl::UnavailableError("the mesh is closed"), done);
    const Plan* const plan = mesh->FindPlan(operation_);
    OP_REQUIRES_ASYNC(context, plan != nullptr,
                      Invalid("there is no operation ", operation_), done);
    Tensor* output;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape_, &output),
                         done);
    auto held = std::make_shared<Held>(Held{context->input(0), *output});
    OP_REQUIRES_ASYNC(
        context,
        BytesOf(held->input) == plan->InputBytes() &&
            BytesOf(*output) == plan->OutputBytes(),
        Invalid(plan->declaration().name, " takes ", plan->InputBytes(),
                " bytes and gives ", plan->OutputBytes(), ", not ",
                BytesOf(held->input), " and ", BytesOf(*output)),
        done);
    Submission submission;
    submission.operation = operation_;
    submission.input = static_cast<const uint8_t*>(held->input.data());
    submission.output = static_cast<uint8_t*>(held->output.data());
    submission.owner = std::move(held);
    submission.done = Ending(context, mesh, std::move(done));
    if (submission.done) mesh->Submit(std::move(submission));
  }

 private:
  static int64_t BytesOf(const Tensor& tensor) {
    return tensor.NumElements() * tensorflow::DataTypeSize(tensor.dtype());
  }

  // Returns what ends the op; null if it has ended because the step has.
  static std::function<void(const std::string&)> Ending(
      OpKernelContext* context, const std::shared_ptr<Mesh>& mesh,
      DoneCallback done) {
    CancellationManager* const steps = context->cancellation_manager();
    CancellationToken token = {};
    if (steps) {
      token = steps->get_cancellation_token();
      const bool is_under_way = steps->RegisterCallback(token, [mesh] {
        mesh->Fail("a step ended before its operations between the workers");
      });
      if (!is_under_way) {
        context->SetStatus(absl::CancelledError("the step has ended"));
        done();
        return nullptr;
      }
    }
    return [context, steps, token,
            done = std::move(done)](const std::string& failure) {
      if (steps) steps->DeregisterCallback(token);
      if (!failure.empty()) {
        context->SetStatus(absl::UnavailableError(failure));
      }
      done();
    };
  }

  int64_t mesh_;
  int operation_;
  TensorShape shape_;
};

REGISTER_KERNEL_BUILDER(Name("TerngradJoin").Device(tensorflow::DEVICE_CPU),
                        JoinOp);

}  // namespace
}  // namespace terngrad
