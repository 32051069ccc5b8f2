#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "terngrad/cc/kernels/common.h"
#include "terngrad/cc/kernels/targets.h"
#include "terngrad/cc/net/meshes.h"
#include "tsl/profiler/lib/traceme.h"

namespace terngrad {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::CancellationToken;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::thread::ThreadPool;
using tsl::profiler::TraceMe;

using Ending = std::function<void(const std::string& failure)>;

constexpr int64_t kFewRows = 512;  // decoded sooner than a thread wakes

// Keeps memory until all of it is sent. While somebody holds a tensor, no other
// op writes to it.
struct Held {
  Tensor input;
  Tensor output;
};

// What the ops of a mesh share.
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

  // Returns an operation's plan; null, and the op has ended, if there is none
  // or the input does not fit.
  const Plan* FindPlan(OpKernelContext* context, const Mesh* mesh,
                       const DoneCallback& done) const {
    const Plan* plan = nullptr;
    const auto find = [&] {
      OP_REQUIRES(context, mesh != nullptr,
                  absl::UnavailableError("the mesh is closed"));
      plan = mesh->FindPlan(operation_);
      OP_REQUIRES(context, plan != nullptr,
                  Invalid("there is no operation ", operation_));
      const int64_t octets = BytesOf(context->input(0));
      OP_REQUIRES(context, octets == plan->InputBytes(),
                  Invalid(plan->declaration().name, " takes ",
                          plan->InputBytes(), " bytes, not ", octets));
    };
    find();
    if (context->status().ok()) return plan;
    done();
    return nullptr;
  }

  // Returns the memory of the output `octets`; null, and an error, if none.
  static int64_t* AllocateOctets(OpKernelContext* context) {
    Tensor* octets = nullptr;
    const auto allocate = [&] {
      OP_REQUIRES_OK(context, context->allocate_output(
                                  "octets", TensorShape({2}), &octets));
    };
    allocate();
    return octets ? octets->flat<int64_t>().data() : nullptr;
  }

  // Returns what ends the op; null if it has ended because the step has.
  static Ending MakeEnding(OpKernelContext* context,
                           const std::shared_ptr<Mesh>& mesh,
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
    // The executor's own trace of the op ends when the op is submitted.
    const int64_t traced = TraceMe::ActivityStart("mesh:TerngradJoin");
    return [context, steps, token, traced,
            done = std::move(done)](const std::string& failure) {
      TraceMe::ActivityEnd(traced);
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

class JoinOp : public MeshOp {
 public:
  explicit JoinOp(OpKernelConstruction* context) : MeshOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = this->mesh();
    const Plan* const plan = FindPlan(context, mesh.get(), done);
    if (!plan) return;
    Tensor* output;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape_, &output),
                         done);
    OP_REQUIRES_ASYNC(
        context, BytesOf(*output) == plan->OutputBytes(),
        Invalid(plan->declaration().name, " gives ", plan->OutputBytes(),
                " bytes, not ", BytesOf(*output)),
        done);
    Submission submission;
    submission.octets = AllocateOctets(context);
    if (!submission.octets) return done();
    auto held = std::make_shared<Held>(Held{context->input(0), *output});
    submission.operation = operation();
    submission.input = static_cast<const uint8_t*>(held->input.data());
    submission.output = static_cast<uint8_t*>(held->output.data());
    submission.owner = std::move(held);
    submission.done = MakeEnding(context, mesh, std::move(done));
    if (submission.done) mesh->Submit(std::move(submission));
  }

 private:
  TensorShape shape_;
};

// Decodes a sum piece by piece, as the pieces come, on the threads of a pool.
class Decoding : public std::enable_shared_from_this<Decoding> {
 public:
  // `held.output` has the sums. They and the targets live until `ending`.
  Decoding(const Declaration& declaration, Held held,
           std::vector<Target> targets, ThreadPool* threads)
      : kernels_(*declaration.kernels),
        held_(std::move(held)),
        sums_{held_.output.flat<uint32_t>().data(), declaration.planes_out()},
        targets_(std::move(targets)),
        threads_(threads) {}

  const Held& held() const { return held_; }
  void set_ending(Ending ending) { ending_ = std::move(ending); }

  // Decodes rows of the sum, soon.
  void Begin(int64_t first, int64_t count) {
    ++left_;
    if (count <= kFewRows) return Decode(first, count);
    threads_->Schedule([self = shared_from_this(), first, count] {
      const tensorflow::port::ScopedFlushDenormal flush;
      self->Decode(first, count);
    });
  }

  // No more rows will come. Ends the op when those that came are decoded.
  void Finish(const std::string& failure) {
    failure_ = failure;
    Leave();
  }

 private:
  void Decode(int64_t first, int64_t count) {
    kernels_.decode(sums_, targets_.data(), targets_.size(), first,
                    first + count);
    Leave();
  }

  void Leave() {
    if (--left_) return;
    const Ending ending =
        std::move(ending_);  // frames may be queued for longer
    ending(failure_);
  }

  const Kernels& kernels_;
  const Held held_;
  const Planes sums_;
  const std::vector<Target> targets_;
  ThreadPool* const threads_;
  Ending ending_;
  std::string failure_;
  std::atomic<int64_t> left_{1};  // pieces, and one for `Finish`
};

class JoinMeansOp : public MeshOp {
 public:
  explicit JoinMeansOp(OpKernelConstruction* context) : MeshOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    const int n = context->num_outputs() - 1;
    OP_REQUIRES(context, static_cast<int>(shapes_.size()) == n,
                Invalid("shapes has ", shapes_.size(), " entries; n is ", n));
    for (const TensorShape& shape : shapes_) elements_ += shape.num_elements();
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<Mesh> mesh = this->mesh();
    const Plan* const plan = FindPlan(context, mesh.get(), done);
    if (!plan) return;
    const Declaration& declaration = plan->declaration();
    OP_REQUIRES_ASYNC(
        context, declaration.kernels && declaration.rows == WordsOf(elements_),
        Invalid(declaration.name, " does not give sums of codes of ", elements_,
                " elements"),
        done);
    Held held{context->input(0), {}};
    OP_REQUIRES_OK_ASYNC(
        context,
        context->allocate_temp(tensorflow::DT_UINT32,
                               {declaration.rows, declaration.planes_out()},
                               &held.output),
        done);
    std::vector<Target> targets;
    MakeTargets(context, shapes_, &targets);
    if (!context->status().ok()) return done();
    auto decoding = std::make_shared<Decoding>(
        declaration, std::move(held), std::move(targets),
        context->device()->tensorflow_cpu_worker_threads()->workers);
    Submission submission;
    submission.octets = AllocateOctets(context);
    if (!submission.octets) return done();
    Ending ending = MakeEnding(context, mesh, std::move(done));
    if (!ending) return;
    decoding->set_ending(std::move(ending));
    submission.operation = operation();
    submission.input =
        static_cast<const uint8_t*>(decoding->held().input.data());
    submission.output = static_cast<uint8_t*>(decoding->held().output.data());
    submission.ready = [decoding](int64_t first, int64_t count) {
      decoding->Begin(first, count);
    };
    submission.done = [decoding](const std::string& failure) {
      decoding->Finish(failure);
    };
    submission.owner = std::move(decoding);
    mesh->Submit(std::move(submission));
  }

 private:
  std::vector<TensorShape> shapes_;
  int64_t elements_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TerngradJoin").Device(tensorflow::DEVICE_CPU),
                        JoinOp);
REGISTER_KERNEL_BUILDER(
    Name("TerngradJoinMeans").Device(tensorflow::DEVICE_CPU), JoinMeansOp);

}  // namespace
}  // namespace terngrad
