#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/decoding.h"
#include "terngrad/cc/kernels/encoding.h"
#include "terngrad/cc/kernels/sources.h"
#include "terngrad/cc/kernels/spans.h"
#include "terngrad/cc/kernels/targets.h"
#include "terngrad/cc/net/mesh_registry.h"

namespace terngrad {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::thread::ThreadPool;
using tsl::profiler::TraceMe;

// The base of the ops of a mesh.
class MeshOp : public AsyncOpKernel {
 public:
  explicit MeshOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("mesh", &mesh_));
    OP_REQUIRES_OK(context, context->GetAttr("operation", &operation_));
  }

 protected:
  std::shared_ptr<Mesh> mesh() const { return FindMesh(mesh_); }
  int operation() const { return operation_; }

  static int64_t BytesOf(const Tensor& tensor) {
    return tensor.NumElements() * tensorflow::DataTypeSize(tensor.dtype());
  }

  // Finds the plan of the operation, whose input has `octets` bytes. This and
  // the following return a status: OP_REQUIRES in an asynchronous op ends the
  // process.
  absl::Status FindPlan(const Mesh* mesh, int64_t octets,
                        const Plan** plan) const {
    if (!mesh) return absl::UnavailableError("the mesh is closed");
    *plan = mesh->FindPlan(operation_);
    if (!*plan) return Invalid("there is no operation ", operation_);
    if (octets == (*plan)->InputBytes()) return absl::OkStatus();
    return Invalid((*plan)->declaration().name, " takes ",
                   (*plan)->InputBytes(), " bytes, not ", octets);
  }

  // Finds the memory of the output `octets`.
  static absl::Status AllocateOctets(OpKernelContext* context,
                                     int64_t** octets) {
    Tensor* output;
    TF_RETURN_IF_ERROR(
        context->allocate_output("octets", TensorShape({2}), &output));
    *octets = output->flat<int64_t>().data();
    return absl::OkStatus();
  }

  // Returns what ends the op; null if it has ended because the step has.
  static Ending MakeEnding(OpKernelContext* context,
                           const std::shared_ptr<Mesh>& mesh, const Plan& plan,
                           DoneCallback done) {
    CancellationManager* const steps = context->cancellation_manager();
    CancellationToken token = {};
    if (steps) {
      token = steps->get_cancellation_token();
      const bool is_under_way =
          steps->RegisterCallback(token, [mesh] { mesh->Cancel(); });
      if (!is_under_way) {
        context->SetStatus(absl::CancelledError("the step has ended"));
        done();
        return nullptr;
      }
    }
    // The executor's own trace of the op ends when the op is submitted. Another
    // thread stops this one: pairs of ActivityStart and ActivityEnd would be
    // lost now and then.
    auto traced = std::make_shared<TraceMe>(
        [&plan] { return SpanName(plan.declaration().name, "TerngradJoin"); });
    return [context, steps, token, traced = std::move(traced),
            done = std::move(done)](const std::string& failure) {
      traced->Stop();
      if (steps) steps->DeregisterCallback(token);
      if (!failure.empty()) {
        context->SetStatus(absl::UnavailableError(failure));
      }
      done();
    };
  }

 private:
  int64_t mesh_;
  int operation_;
};

// Returns the submission of an operation from memory to memory.
Submission MakeSubmission(int operation, const OperationTensors& tensors) {
  Submission submission;
  auto owner = std::make_shared<OperationTensors>(tensors);
  submission.operation = operation;
  submission.input = static_cast<const uint8_t*>(owner->input.data());
  submission.output = static_cast<uint8_t*>(owner->output.data());
  submission.owner = std::move(owner);
  return submission;
}

class JoinOp : public MeshOp {
 public:
  explicit JoinOp(OpKernelConstruction* context) : MeshOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = this->mesh();
    const Plan* plan;
    OP_REQUIRES_OK_ASYNC(
        context, FindPlan(mesh.get(), BytesOf(context->input(0)), &plan), done);
    TensorShape shape;
    Tensor* output;
    OP_REQUIRES_OK_ASYNC(
        context, FindShape(*plan, context->input_dtype(0), &shape), done);
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &output),
                         done);
    OP_REQUIRES_ASYNC(
        context, BytesOf(*output) == plan->OutputBytes(),
        Invalid(plan->declaration().name, " gives ", plan->OutputBytes(),
                " bytes, not ", BytesOf(*output)),
        done);
    Submission submission =
        MakeSubmission(operation(), {context->input(0), *output});
    OP_REQUIRES_OK_ASYNC(context, AllocateOctets(context, &submission.octets),
                         done);
    submission.done = MakeEnding(context, mesh, *plan, std::move(done));
    if (submission.done) mesh->Submit(std::move(submission));
  }

 private:
  // Finds the shape of the output, whose first size may depend on the mesh.
  absl::Status FindShape(const Plan& plan, tensorflow::DataType type,
                         TensorShape* shape) const {
    if (shape_.AsTensorShape(shape)) return absl::OkStatus();
    PartialTensorShape row = shape_;
    if (row.dims() > 0) row.RemoveDim(0);
    TensorShape rest;
    if (!row.AsTensorShape(&rest) || rest.num_elements() == 0) {
      return Invalid(plan.declaration().name, " gives no ",
                     shape_.DebugString());
    }
    *shape = rest;
    shape->InsertDim(0, plan.OutputBytes() / (tensorflow::DataTypeSize(type) *
                                              rest.num_elements()));
    return absl::OkStatus();
  }

  PartialTensorShape shape_;
};

class EncodeJoinOp : public MeshOp {
 public:
  explicit EncodeJoinOp(OpKernelConstruction* context)
      : MeshOp(context), reader_(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = this->mesh();
    Bucket bucket;
    const Plan* plan;
    Tensor* sums;
    OP_REQUIRES_OK_ASYNC(context, ReadBucket(context, reader_, &bucket), done);
    OP_REQUIRES_OK_ASYNC(
        context, FindPlan(mesh.get(), BytesOf(bucket.codes), &plan), done);
    const Declaration& declaration = plan->declaration();
    OP_REQUIRES_ASYNC(context, declaration.kernels,
                      Invalid(declaration.name, " does not give sums of codes"),
                      done);
    OP_REQUIRES_OK_ASYNC(
        context,
        context->allocate_output(
            "sums", TensorShape({declaration.rows, declaration.planes_out()}),
            &sums),
        done);
    Submission submission = MakeSubmission(operation(), {bucket.codes, *sums});
    OP_REQUIRES_OK_ASYNC(context, AllocateOctets(context, &submission.octets),
                         done);
    ThreadPool* const threads =
        context->device()->tensorflow_cpu_worker_threads()->workers;
    auto encoding =
        std::make_shared<Encoding>(mesh, operation(), *plan, std::move(bucket));
    submission.comes_in_parts = true;
    submission.done = MakeEnding(context, mesh, *plan, std::move(done));
    // From `Submit` on the op may have ended, with its context and all it owns.
    if (submission.done) {
      encoding->Begin(mesh->Submit(std::move(submission)), threads);
    }
  }

 private:
  const SourcesReader reader_;
};

// The base of ops that decode a sum of codes.
class MeansOp : public MeshOp {
 public:
  explicit MeansOp(OpKernelConstruction* context)
      : MeshOp(context), parts_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    int n;
    OP_REQUIRES_OK(context, context->GetAttr("n", &n));
    OP_REQUIRES(context, static_cast<int>(shapes_.size()) == n,
                Invalid("shapes has ", shapes_.size(), " entries; n is ", n));
    for (const TensorShape& shape : shapes_) elements_ += shape.num_elements();
  }

 protected:
  int64_t elements() const { return elements_; }

  // Submits codes for their means. Returns the number of this use of the
  // operation; none if the op has ended, which it may have in any case.
  std::optional<uint64_t> Submit(OpKernelContext* context,
                                 const std::shared_ptr<Mesh>& mesh,
                                 const Plan& plan, const Tensor& codes,
                                 bool comes_in_parts, DoneCallback done) const {
    OperationTensors tensors{codes, {}};
    Targets targets;
    Submission submission;
    const absl::Status status =
        Allocate(context, plan.declaration(), &tensors.output, &targets,
                 &submission.octets);
    if (!status.ok()) {
      context->SetStatus(status);
      done();
      return std::nullopt;
    }
    auto decoding = std::make_shared<Decoding>(
        plan.declaration(), std::move(tensors), std::move(targets),
        context->device()->tensorflow_cpu_worker_threads()->workers);
    Ending ending = MakeEnding(context, mesh, plan, std::move(done));
    if (!ending) return std::nullopt;
    decoding->set_ending(std::move(ending));
    submission.operation = operation();
    submission.input =
        static_cast<const uint8_t*>(decoding->tensors().input.data());
    submission.output =
        static_cast<uint8_t*>(decoding->tensors().output.data());
    submission.comes_in_parts = comes_in_parts;
    submission.ready = [decoding](int64_t first, int64_t count) {
      decoding->Begin(first, count);
    };
    submission.done = [decoding](const std::string& failure) {
      decoding->Finish(failure);
    };
    submission.owner = std::move(decoding);
    return mesh->Submit(std::move(submission));
  }

 private:
  absl::Status Allocate(OpKernelContext* context,
                        const Declaration& declaration, Tensor* sums,
                        Targets* targets, int64_t** octets) const {
    if (!declaration.kernels || declaration.rows != WordsOf(elements_)) {
      return Invalid(declaration.name, " does not give sums of codes of ",
                     elements_, " elements");
    }
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_UINT32, {declaration.rows, declaration.planes_out()},
        sums));
    TF_RETURN_IF_ERROR(MakeTargets(context, shapes_, parts_, targets));
    return AllocateOctets(context, octets);
  }

  const PartsOfVariables parts_;
  std::vector<TensorShape> shapes_;
  int64_t elements_ = 0;
};

class JoinMeansOp : public MeansOp {
 public:
  using MeansOp::MeansOp;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = this->mesh();
    const Tensor& codes = context->input(0);
    const Plan* plan;
    OP_REQUIRES_OK_ASYNC(context, FindPlan(mesh.get(), BytesOf(codes), &plan),
                         done);
    Submit(context, mesh, *plan, codes, false, std::move(done));
  }
};

class EncodeJoinMeansOp : public MeansOp {
 public:
  explicit EncodeJoinMeansOp(OpKernelConstruction* context)
      : MeansOp(context), reader_(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = this->mesh();
    Bucket bucket;
    const Plan* plan;
    OP_REQUIRES_OK_ASYNC(context, ReadBucket(context, reader_, &bucket), done);
    OP_REQUIRES_ASYNC(context, bucket.sources.elements == elements(),
                      Invalid("gradients have ", bucket.sources.elements,
                              " elements; shapes have ", elements()),
                      done);
    OP_REQUIRES_OK_ASYNC(
        context, FindPlan(mesh.get(), BytesOf(bucket.codes), &plan), done);
    ThreadPool* const threads =
        context->device()->tensorflow_cpu_worker_threads()->workers;
    const Tensor codes = bucket.codes;
    auto encoding =
        std::make_shared<Encoding>(mesh, operation(), *plan, std::move(bucket));
    const std::optional<uint64_t> use =
        Submit(context, mesh, *plan, codes, true, std::move(done));
    // From here on the op may have ended, with its context and all it owns.
    if (use) encoding->Begin(*use, threads);
  }

 private:
  const SourcesReader reader_;
};

REGISTER_KERNEL_BUILDER(Name("TerngradJoin").Device(tensorflow::DEVICE_CPU),
                        JoinOp);
REGISTER_KERNEL_BUILDER(
    Name("TerngradJoinMeans").Device(tensorflow::DEVICE_CPU), JoinMeansOp);
REGISTER_KERNEL_BUILDER(
    Name("TerngradEncodeJoin").Device(tensorflow::DEVICE_CPU), EncodeJoinOp);
REGISTER_KERNEL_BUILDER(
    Name("TerngradEncodeJoinMeans").Device(tensorflow::DEVICE_CPU),
    EncodeJoinMeansOp);

}  // namespace
}  // namespace terngrad
