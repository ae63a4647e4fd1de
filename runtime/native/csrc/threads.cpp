// The pool of threads.h.
#include "threads.h"

#include <immintrin.h>

namespace phloem {
namespace {

// About 20 us (a pause is some 40 to 140 cycles): longer than the gap between two jobs of one
// forward pass, far shorter than a time slice.
constexpr int kSpins = 400;

uint32_t next_of(uint64_t ticket) { return static_cast<uint32_t>(ticket); }
uint32_t pieces_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }

}  // namespace

Pool::Pool(int threads) {
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker(t); });
}

Pool::~Pool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void Pool::run_job(int64_t pieces, Call call, const void* body) {
  if (pieces <= 0) return;
  if (workers_.empty() || pieces == 1) {
    for (int64_t piece = 0; piece < pieces; ++piece) call(body, piece, 0);
    return;
  }
  call_ = call;
  body_ = body;
  finished_.store(0, std::memory_order_relaxed);
  // seq_cst, as is the load below: either a worker about to sleep sees this job, or we see it.
  ticket_.store(static_cast<uint64_t>(pieces) << 32);
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  while (work(0)) {
  }
  const auto all = static_cast<uint32_t>(pieces);
  for (int spin = 0; finished_.load(std::memory_order_acquire) != all; ++spin) {
    if (spin < kSpins) {
      _mm_pause();
      continue;
    }
    caller_sleeps_.store(1);
    const uint32_t seen = finished_.load();
    if (seen != all) finished_.wait(seen);
    caller_sleeps_.store(0);
  }
}

// Claims and does one piece; false if there is none.
bool Pool::work(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  if (next_of(ticket) >= pieces_of(ticket)) return false;
  ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
  if (next_of(ticket) >= pieces_of(ticket)) return false;
  call_(body_, next_of(ticket), thread);
  // The job, its body and call_ may be gone after this increment.
  finished_.fetch_add(1);
  if (caller_sleeps_.load() != 0) finished_.notify_one();
  return true;
}

void Pool::worker(int thread) {
  for (int spin = 0; !stop_.load(std::memory_order_relaxed);) {
    if (work(thread)) {
      spin = 0;
    } else if (spin < kSpins) {
      ++spin;
      _mm_pause();
    } else {
      sleepers_.fetch_add(1);
      const uint32_t seen = wake_.load();
      const uint64_t ticket = ticket_.load();
      if (next_of(ticket) >= pieces_of(ticket) && !stop_.load()) wake_.wait(seen);
      sleepers_.fetch_sub(1);
      spin = 0;
    }
  }
}

}  // namespace phloem
