// The operations of a mesh: how they are declared, and what a round of one
// sends and receives.

#include <cstring>

#include "terngrad/cc/net/mesh.h"

namespace terngrad {
namespace {

// The names that `MeshKind` of terngrad/ops/mesh.py has; a number if it has
// none.
std::string NameOf(Kind kind) {
  switch (kind) {
    case Kind::kGather:
      return "gather";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kCodes:
      return "codes";
    case Kind::kFloats:
      return "floats";
    case Kind::kScatterCodes:
      return "scatter_codes";
    case Kind::kGatherCodes:
      return "gather_codes";
    case Kind::kMaxima:
      return "maxima";
    case Kind::kHalves:
      return "halves";
  }
  return std::to_string(static_cast<int>(kind));
}

std::string Text(Kind kind, uint64_t rows, int planes_in, int planes_out) {
  std::string text =
      "kind " + NameOf(kind) + ", " + std::to_string(rows) + " rows";
  if (HasCodes(kind)) {
    text += " of " + std::to_string(planes_in) + " and " +
            std::to_string(planes_out) + " planes";
  }
  return text;
}

bool Same(const Declaration& a, const Declaration& b) {
  return a.name == b.name && a.kind == b.kind && a.rows == b.rows &&
         a.largest_in == b.largest_in && a.largest_out == b.largest_out &&
         a.kernels == b.kernels;
}

}  // namespace

int Mesh::Declare(const Declaration& declaration, std::string* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t key = KeyOf(declaration.name);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    const Declaration& other = found->second->plan.declaration();
    if (Same(other, declaration)) return found->second->index;
    *error = other.name == declaration.name
                 ? "it has " + Text(other.kind, other.rows, other.planes_in(),
                                    other.planes_out())
                 : "its key is that of " + other.name;
    return -1;
  }
  auto operation = std::make_unique<Operation>(declaration, size_);
  operation->index = operations_.size();
  operation->key = key;
  by_key_[key] = operation.get();
  operations_.push_back(std::move(operation));
  Wake();  // a process may have sent a part of it before
  return operations_.back()->index;
}

const Plan* Mesh::FindPlan(int operation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool exists =
      operation >= 0 && operation < static_cast<int>(operations_.size());
  return exists ? &operations_[operation]->plan : nullptr;
}

// ---- Frames that arrive -----------------------------------------------------

Mesh::Operation* Mesh::Find(uint64_t key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

Place Mesh::OnHeader(int peer, const FrameHeader& header) {
  Operation* const operation = Find(header.key);
  if (!operation) return {Place::kNotYet, nullptr};
  if (const std::string why = Objection(*operation, header, peer);
      !why.empty()) {
    Refuse(peer, why);
    return {Place::kRefused, nullptr};
  }
  Round& round = operation->rounds[header.round & 1];
  Prepare(*operation, round);
  const size_t index = operation->first[header.shot][peer] + header.chunk;
  if (round.is_begun[index]) {
    Refuse(peer, "it sent a chunk of " + operation->plan.declaration().name +
                     " twice");
    return {Place::kRefused, nullptr};
  }
  round.is_begun[index] = true;
  Incoming& incoming = incoming_[peer];
  incoming.operation = operation;
  incoming.round = &round;
  incoming.header = header;
  const bool is_part = operation->plan.reduces() && header.shot == 0;
  if (is_part || !round.is_submitted || header.length == 0 ||
      operation->plan.IsPacked()) {
    incoming.block = blocks_.Take(header.length);
    return {Place::kHere, incoming.block.get()};
  }
  return {Place::kHere,
          OutputOf(*operation, round, header.shot, peer, header.chunk)};
}

// Returns what is wrong with a frame; empty if nothing is.
std::string Mesh::Objection(const Operation& operation,
                            const FrameHeader& header, int peer) const {
  const Plan& plan = operation.plan;
  const Declaration& mine = plan.declaration();
  if (header.kind != static_cast<uint8_t>(mine.kind) ||
      header.rows != static_cast<uint64_t>(mine.rows) ||
      header.planes_in != mine.planes_in() ||
      header.planes_out != mine.planes_out()) {
    return mine.name + " has " +
           Text(static_cast<Kind>(header.kind), header.rows, header.planes_in,
                header.planes_out) +
           " there, " +
           Text(mine.kind, mine.rows, mine.planes_in(), mine.planes_out()) +
           " here";
  }
  const uint32_t ahead = header.round - operation.done;
  const Round& current = operation.rounds[operation.done & 1];
  if (ahead > 1 || (ahead == 1 && !current.is_submitted)) {
    return "it is at use " + std::to_string(header.round) + " of " + mine.name +
           ", this one at " + std::to_string(operation.done);
  }
  if (header.shot >= plan.shots() ||
      (header.shot == 1 && (ahead || !current.is_submitted))) {
    return "it sent shot " + std::to_string(header.shot) + " of " + mine.name;
  }
  const Range range = plan.Sent(header.shot, peer, rank_);
  if (header.chunk >= range.chunks ||
      !plan.IsSize(header.shot, header.length, range.Count(header.chunk))) {
    return "it sent chunk " + std::to_string(header.chunk) + " of " +
           mine.name + " with " + std::to_string(header.length) + " bytes";
  }
  return "";
}

// Allocates what a round needs, unless that has been done.
void Mesh::Prepare(Operation& operation, Round& round) {
  if (!round.is_begun.empty()) return;
  const Plan& plan = operation.plan;
  round.missing.assign(size_, 0);
  size_t begun = 0;
  for (int shot = 0; shot < 2; ++shot) {
    operation.first[shot].assign(size_, 0);
    for (int peer = 0; peer < size_ && shot < plan.shots(); ++peer) {
      operation.first[shot][peer] = begun;
      if (peer == rank_) continue;
      const Range range = plan.Sent(shot, peer, rank_);
      begun += range.chunks;
      round.missing[peer] += range.chunks;
      round.pending += range.chunks;
    }
    if (shot == 0) round.blocks.resize(begun);
  }
  round.arrived.assign(plan.Added(rank_).chunks, 0);
  round.pending += round.arrived.size();
  for (const int to : plan.Receivers(rank_)) {
    round.pending += plan.Sent(0, rank_, to).chunks;
  }
  round.is_begun.assign(begun + 1, false);  // never empty: it is prepared
}

bool Mesh::OnPayload(int peer) {
  Incoming& incoming = incoming_[peer];
  bytes_received_ += incoming.header.length;
  incoming.round->received += incoming.header.length;
  Arrive(*incoming.operation, *incoming.round, peer, incoming.header,
         std::move(incoming.block));
  return !has_failed_;
}

void Mesh::Arrive(Operation& operation, Round& round, int peer,
                  const FrameHeader& header, Block block) {
  const Plan& plan = operation.plan;
  const Range range = plan.Sent(header.shot, peer, rank_);
  --round.missing[peer];
  --round.pending;
  if (plan.IsPacked()) {
    const Block packed = std::move(block);
    const int64_t count = range.Count(header.chunk);
    uint8_t* rows;
    if (header.shot == 0) {
      block = blocks_.Take(count * plan.RowBytes(0));
      rows = block.get();
    } else {
      rows = OutputOf(operation, round, 1, peer, header.chunk);
    }
    if (!plan.Unpack(header.shot, packed.get(), header.length, count, rows)) {
      Refuse(peer, "it sent chunk " + std::to_string(header.chunk) + " of " +
                       plan.declaration().name + ", which cannot be decoded");
      return;
    }
  }
  if (plan.reduces() && header.shot == 0) {
    round.blocks[operation.first[0][peer] + header.chunk] = std::move(block);
    if (++round.arrived[header.chunk] == size_) {
      AddChunk(operation, round, header.chunk);
    }
  } else if (header.shot == 1) {
    ReportFinal(round, range.First(header.chunk), range.Count(header.chunk));
  } else if (block && round.is_submitted) {
    CopyOut(operation, round, peer, header.chunk, block.get());
  } else if (block) {
    round.blocks[operation.first[0][peer] + header.chunk] = std::move(block);
  }
  FinishIfDone(operation);
}

// ---- Operations -------------------------------------------------------------

// Sends this process' parts, unless they are offered later, and handles what
// has arrived before.
void Mesh::Begin(Operation& operation) {
  const Plan& plan = operation.plan;
  Round& round = operation.rounds[operation.done & 1];
  FailIfLeft(operation);
  if (has_failed_) return;
  const bool is_there = !round.submission.comes_in_parts;
  for (const int to : plan.Receivers(rank_)) {
    const uint32_t chunks = is_there ? plan.Sent(0, rank_, to).chunks : 0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      TakePart({round.submission.use, &operation, to, chunk});
      if (has_failed_) return;
    }
  }
  CopyOwn(operation, round);
  for (int peer = 0; peer < size_ && !plan.reduces(); ++peer) {
    const uint32_t chunks =
        peer == rank_ ? 0 : plan.Sent(0, peer, rank_).chunks;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      Block& block = round.blocks[operation.first[0][peer] + chunk];
      if (!block) continue;
      CopyOut(operation, round, peer, chunk, block.get());
      block.reset();
    }
  }
  FinishIfDone(operation);
}

// Sends a part of this process' input, adds it if its sum is made here, or
// both.
void Mesh::TakePart(const Part& part) {
  Operation& operation = *part.operation;
  const Plan& plan = operation.plan;
  Round& round = operation.rounds[operation.done & 1];
  --round.pending;
  if (part.to != rank_ && has_left_[part.to]) {
    FailAll(names_[part.to] + " closed its connection");
    return;
  }
  if (part.to != rank_) {
    const int64_t first = plan.Sent(0, rank_, part.to).First(part.chunk);
    QueueFrames(operation, 0, part.chunk,
                round.submission.input + plan.InputOffset(rank_, part.to) +
                    first * plan.RowBytes(0),
                {part.to});
  }
  if (!plan.reduces() || !plan.IsAdded(rank_, part.to)) return;
  if (++round.arrived[part.chunk] == size_) {
    AddChunk(operation, round, part.chunk);
  }
}

// Sends rows, which live as long as the submission's owner, or packed ones.
void Mesh::QueueFrames(Operation& operation, int shot, uint32_t chunk,
                       const uint8_t* rows, const std::vector<int>& receivers) {
  const Plan& plan = operation.plan;
  const Declaration& declaration = plan.declaration();
  const int64_t count = plan.Sent(shot, rank_, receivers[0]).Count(chunk);
  Round& round = operation.rounds[operation.done & 1];
  std::shared_ptr<const void> owner;
  int64_t size = count * plan.RowBytes(shot);
  if (!plan.IsPacked()) {
    owner = round.submission.owner;
  } else {
    const std::shared_ptr<uint8_t[]> packed = blocks_.Take(size);
    size = plan.Pack(shot, rows, count, packed.get());
    rows = packed.get();
    owner = packed;
  }
  FrameHeader header = {};
  header.key = operation.key;
  header.rows = declaration.rows;
  header.chunk = chunk;
  header.length = size;
  header.round = operation.done;
  header.kind = static_cast<uint8_t>(declaration.kind);
  header.shot = shot;
  header.planes_in = declaration.planes_in();
  header.planes_out = declaration.planes_out();
  for (const int to : receivers) {
    bytes_sent_ += size;
    round.sent += size;
    connections_[to]->Queue(header, rows, owner);
  }
}

// Copies what this process would send to itself.
void Mesh::CopyOwn(const Operation& operation, const Round& round) {
  const Plan& plan = operation.plan;
  const Declaration& declaration = plan.declaration();
  const bool is_receiver = declaration.kind == Kind::kBroadcast && rank_ != 0;
  const Range range = plan.Sent(0, rank_, rank_);
  if (plan.reduces() || is_receiver || range.begin == range.end) return;
  const int64_t row = plan.RowBytes(0);
  std::memcpy(
      round.submission.output + plan.OutputOffset(rank_) + range.begin * row,
      round.submission.input + plan.InputOffset(rank_, rank_) +
          range.begin * row,
      (range.end - range.begin) * row);
}

// Returns the place in the output of a chunk that a process sends.
uint8_t* Mesh::OutputOf(const Operation& operation, const Round& round,
                        int shot, int peer, uint32_t chunk) const {
  const Plan& plan = operation.plan;
  return round.submission.output + plan.OutputOffset(peer) +
         plan.Sent(shot, peer, rank_).First(chunk) * plan.RowBytes(shot);
}

void Mesh::CopyOut(const Operation& operation, const Round& round, int peer,
                   uint32_t chunk, const uint8_t* block) {
  const Plan& plan = operation.plan;
  const Range range = plan.Sent(0, peer, rank_);
  if (range.begin == range.end) return;  // an answer
  std::memcpy(OutputOf(operation, round, 0, peer, chunk), block,
              range.Count(chunk) * plan.RowBytes(0));
}

// Adds a chunk whose parts are all there and, in two shots, sends the sums.
void Mesh::AddChunk(Operation& operation, Round& round, uint32_t chunk) {
  const Plan& plan = operation.plan;
  const Range range = plan.Added(rank_);
  const int64_t first = range.First(chunk);
  for (int peer = 0; peer < size_; ++peer) {
    parts_[peer] = peer == rank_
                       ? round.submission.input + first * plan.RowBytes(0)
                       : round.blocks[operation.first[0][peer] + chunk].get();
  }
  uint8_t* const total = round.submission.output + plan.SumsOffset(rank_) +
                         first * plan.RowBytes(1);
  plan.Add(parts_, range.Count(chunk), total);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    round.blocks[operation.first[0][peer] + chunk].reset();
  }
  if (plan.shots() == 2) QueueFrames(operation, 1, chunk, total, others_);
  --round.pending;
  ReportFinal(round, first + plan.SumsOffset(rank_) / plan.RowBytes(1),
              range.Count(chunk));
}

// Reports to the submitter that rows of the output, which are sums, are final.
void Mesh::ReportFinal(const Round& round, int64_t first, int64_t count) {
  if (round.submission.ready) round.submission.ready(first, count);
}

void Mesh::FinishIfDone(Operation& operation) {
  Round& round = operation.rounds[operation.done & 1];
  if (!round.is_submitted || round.pending) return;
  const Submission submission = std::move(round.submission);
  if (submission.octets) {
    submission.octets[0] = round.sent;
    submission.octets[1] = round.received;
  }
  round.sent = round.received = 0;
  round.submission = {};
  round.is_submitted = false;
  round.is_begun.clear();
  ++operation.done;
  submission.done("");
}

}  // namespace terngrad
