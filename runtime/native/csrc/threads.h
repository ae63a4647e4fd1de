// A small pool of threads that share the pieces of one job at a time.
//
// Why not OpenMP: its pieces are dealt out in advance and its barriers spin, so on two cores a
// third runnable thread (the HTTP loop) makes one compute thread wait a whole time slice for
// the other. Here a piece belongs to whoever claims it, so a thread that is not running owns
// nothing, and a waiter spins only briefly and then sleeps, which frees its core for the very
// thread it waits for.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace phloem {

class Pool {
 public:
  explicit Pool(int threads);  // the caller of run() is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(piece, thread) for each piece in [0, pieces), and returns when all are done.
  // Only one thread may be inside run() at a time. Thread t begins with its share, the pieces
  // [starts[t], starts[t + 1]), in order, and then takes what others have not begun: so what is
  // known of a piece tends to stay in one core's cache from job to job.
  template <class Body>
  void run(const std::vector<int64_t>& starts, const Body& body) {
    run_job(starts, [](const void* b, int64_t piece, int thread) {
      (*static_cast<const Body*>(b))(piece, thread);
    }, &body);
  }

  // With equal shares.
  template <class Body>
  void run(int64_t pieces, const Body& body) {
    for (size_t t = 0; t < even_.size(); ++t) even_[t] = pieces * static_cast<int64_t>(t) / threads();
    run(even_, body);
  }

 private:
  using Call = void (*)(const void*, int64_t, int);

  // [63:32] end of a share, [31:0] its next piece to claim. A claimed piece keeps its job alive,
  // because run_job returns only when finished_ == pieces.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };

  void run_job(const std::vector<int64_t>& starts, Call call, const void* body);
  bool work(int thread);
  bool work_on(Share& share, int thread);
  bool has_work() const;
  void worker(int thread);

  std::vector<Share> shares_;  // one per thread
  std::vector<int64_t> even_;
  alignas(64) std::atomic<uint32_t> finished_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  Call call_ = nullptr;
  const void* body_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace phloem
