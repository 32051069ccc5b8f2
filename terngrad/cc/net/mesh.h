// P processes, each with one socket to each other, and operations between them.
//
// All processes declare the same operations, in any order, and use each of them
// equally often. Parts are matched by the operation's name and by how often it
// was used, never by their order. One thread sends, receives and adds.

#ifndef TERNGRAD_CC_NET_MESH_H_
#define TERNGRAD_CC_NET_MESH_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "terngrad/cc/net/blocks.h"
#include "terngrad/cc/net/connection.h"
#include "terngrad/cc/net/plan.h"

namespace terngrad {

// What one use of an operation needs. Input and output live as long as `owner`,
// which is released when all is sent. Meanwhile the caller only writes to rows
// of an input in parts that are not offered yet.
struct Submission {
  int operation = -1;  // see Mesh::Declare
  const uint8_t* input = nullptr;
  uint8_t* output = nullptr;
  std::shared_ptr<const void> owner;
  // Called, if not null, from the mesh's thread before `done` with rows of a
  // sum that are final in the output: with each row once, in any order.
  std::function<void(int64_t first, int64_t count)> ready;
  // If not null: the bytes of payloads that this use has sent and received are
  // written there before `done` is called without a failure.
  int64_t* octets = nullptr;
  // Whether the input of a sum is not complete yet: its parts will be offered.
  bool comes_in_parts = false;
  // The id of this submission, for Mesh::Offer; Mesh::Submit sets it. Unlike a
  // round it counts the uses of all operations together.
  uint64_t use = 0;
  // Called once, from any thread, with an empty text when the output is
  // complete, else with the reason of the failure.
  std::function<void(const std::string& failure)> done;
};

class Mesh : private Receiver {
 public:
  // `names` are those of all processes, for messages. There is a `failure` if
  // this process may open no more files.
  Mesh(int rank, std::vector<std::string> names);
  ~Mesh() override;

  int rank() const { return rank_; }

  // Takes a socket to another process. Call it before `Start`.
  void AddConnection(int peer, std::unique_ptr<Socket> socket);

  // Starts the thread, unless there is a failure already.
  void Start();

  // Returns the index of an operation, also if it was declared before; -1 and a
  // text if its name, or the key of its name, belongs to another one.
  int Declare(const Declaration& declaration, std::string* error);

  // Returns the plan of an operation, null if there is none of this index. It
  // lives as long as the mesh.
  const Plan* FindPlan(int operation) const;

  // Starts an operation. Each one must be done before it is submitted again.
  // Returns the id of this use, for `Offer`.
  uint64_t Submit(Submission submission);

  // Offers the rows of a chunk for process `to`, one of Plan::Receivers: they
  // are final in the input of a use. Each chunk is offered once. Returns false
  // if no more are needed, because operations fail.
  bool Offer(uint64_t use, int operation, int to, uint32_t chunk);

  // Ends all operations, also later ones, with this text.
  void Fail(const std::string& text);
  // The same, because a step of this process has ended before its operations.
  void Cancel();

  // Returns why operations fail; empty if they do not.
  std::string failure() const;
  // Whether they do because another process violated the protocol, and not
  // because its connection ended.
  bool was_refused() const { return was_refused_; }
  // Whether they do because of `Cancel`.
  bool was_cancelled() const { return was_cancelled_; }

  // Bytes of payloads so far, without headers.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }

  // Sends what is queued, for at most `secs`, and ends. Operations that are not
  // done fail.
  void Close(double secs);

 private:
  using Block = Blocks::Block;
  using Clock = std::chrono::steady_clock;

  // The progress of one use of an operation: what was sent and what has
  // arrived, which may begin before this process submits it. Rounds are counted
  // for each operation.
  struct Round {
    bool is_submitted = false;
    Submission submission;
    int64_t pending = 0;           // chunks to be taken, received or added
    std::vector<int64_t> missing;  // of them, those of each process
    std::vector<bool> is_begun;  // by shot, process, chunk: against duplicates
    std::vector<Block> blocks;   // of shot 0, by process, chunk
    std::vector<int> arrived;    // parts of each chunk that is added here, with
                                 // this process' own
    int64_t sent = 0;            // bytes of payloads
    int64_t received = 0;
  };

  struct Operation {
    Operation(const Declaration& declaration, int size)
        : plan(declaration, size) {}

    Plan plan;
    int index = 0;
    uint64_t key = 0;
    uint32_t done = 0;             // rounds
    std::vector<size_t> first[2];  // place in `is_begun`, by shot, process
    Round rounds[2];               // the current one and the next
  };

  // See `Offer`.
  struct Part {
    uint64_t use = 0;
    Operation* operation = nullptr;
    int to = 0;
    uint32_t chunk = 0;
  };

  // The frame that is being received from a process.
  struct Incoming {
    Operation* operation = nullptr;
    Round* round = nullptr;
    FrameHeader header;
    Block block;  // null if it goes straight to the output
  };

  Place OnHeader(int peer, const FrameHeader& header) override;
  bool OnPayload(int peer) override;

  void Add(int fd, uint32_t events, uint64_t data);
  void Run();
  void Handle(int peer, uint32_t events);
  void Receive(int peer);
  void ReceiveMore();
  void SendAll();
  void Watch(int peer);
  void Leave(int peer);
  void Wake();
  void TakeSubmissions();
  bool IsOver(Clock::time_point now);
  int WaitMs() const;

  Operation* Find(uint64_t key);
  std::string Objection(const Operation& operation, const FrameHeader& header,
                        int peer) const;
  void Prepare(Operation& operation, Round& round);
  void Begin(Operation& operation);
  void TakePart(const Part& part);
  void QueueFrames(Operation& operation, int shot, uint32_t chunk,
                   const uint8_t* rows, const std::vector<int>& receivers);
  void Arrive(Operation& operation, Round& round, int peer,
              const FrameHeader& header, Block block);
  void AddChunk(Operation& operation, Round& round, uint32_t chunk);
  static void ReportFinal(const Round& round, int64_t first, int64_t count);
  uint8_t* OutputOf(const Operation& operation, const Round& round, int shot,
                    int peer, uint32_t chunk) const;
  void CopyOut(const Operation& operation, const Round& round, int peer,
               uint32_t chunk, const uint8_t* block);
  void CopyOwn(const Operation& operation, const Round& round);
  void FinishIfDone(Operation& operation);
  void FailIfLeft(const Operation& operation);
  void FailAll(const std::string& text);
  bool Refuse(int peer, const std::string& why);
  std::string WhyBroken(int peer) const;

  const int rank_;
  const int size_;
  const std::vector<std::string> names_;
  std::vector<int> others_;  // in the order in which this process sends to them
  int epoll_ = -1;
  int wake_ = -1;
  std::thread thread_;
  std::atomic<int64_t> bytes_sent_{0};
  std::atomic<int64_t> bytes_received_{0};

  // For the thread; it outlives operations and connections, which have blocks.
  Blocks blocks_;

  // Shared by all threads.
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::unordered_map<uint64_t, Operation*> by_key_;
  std::vector<Submission> submitted_;
  std::vector<Part> offered_;
  uint64_t uses_ = 0;
  std::string failure_;
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> was_refused_{false};
  std::atomic<bool> was_cancelled_{false};
  bool has_news_ = false;  // for the thread, which is awake or being woken
  Clock::time_point close_by_;

  // Only the thread uses these.
  std::vector<std::unique_ptr<Connection>> connections_;  // by process
  std::vector<uint32_t> watched_;                         // events, by process
  std::vector<bool> has_left_;                            // by process
  std::vector<bool> is_stalled_;                          // by process
  std::vector<bool> has_more_;  // than it read in its turn, by process
  std::vector<bool> is_ready_;  // its socket takes more, by process
  std::vector<Incoming> incoming_;
  std::vector<const uint8_t*> parts_;
  bool has_failed_ = false;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_MESH_H_
