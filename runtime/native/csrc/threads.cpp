// The pool of threads.h.
#include "threads.h"

#include <immintrin.h>

#include <algorithm>

namespace phloem {
namespace {

// About 20 us (a pause is some 40 to 140 cycles): longer than the gap between two jobs of one
// forward pass, far shorter than a time slice.
constexpr int kSpins = 400;

uint32_t next_of(uint64_t ticket) { return static_cast<uint32_t>(ticket); }
uint32_t end_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }

}  // namespace

Pool::Pool(int threads) : shares_(threads), even_(threads + 1) {
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker(t); });
}

Pool::~Pool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void Pool::run_job(const std::vector<int64_t>& starts, Call call, const void* body) {
  const auto pieces = static_cast<uint32_t>(starts.back());
  if (workers_.empty() || pieces <= 1) {
    for (uint32_t piece = 0; piece < pieces; ++piece) call(body, piece, 0);
    return;
  }
  call_ = call;
  body_ = body;
  finished_.store(0, std::memory_order_relaxed);
  // seq_cst, as are the loads below: either a worker about to sleep sees this job, or we see it.
  for (size_t t = 0; t < shares_.size(); ++t) {
    shares_[t].ticket.store(static_cast<uint64_t>(starts[t + 1]) << 32 |
                            static_cast<uint64_t>(starts[t]));
  }
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  while (work(0)) {
  }
  for (int spin = 0; finished_.load(std::memory_order_acquire) != pieces; ++spin) {
    if (spin < kSpins) {
      _mm_pause();
      continue;
    }
    caller_sleeps_.store(1);
    const uint32_t seen = finished_.load();
    if (seen != pieces) finished_.wait(seen);
    caller_sleeps_.store(0);
  }
}

// Claims and does one piece, of the thread's own share if it can; false if there is none.
bool Pool::work(int thread) {
  const size_t count = shares_.size();
  for (size_t i = 0; i < count; ++i) {
    if (work_on(shares_[(thread + i) % count], thread)) return true;
  }
  return false;
}

bool Pool::work_on(Share& share, int thread) {
  uint64_t ticket = share.ticket.load(std::memory_order_acquire);
  if (next_of(ticket) >= end_of(ticket)) return false;
  ticket = share.ticket.fetch_add(1, std::memory_order_acq_rel);
  if (next_of(ticket) >= end_of(ticket)) return false;
  call_(body_, next_of(ticket), thread);
  // The job, its body and call_ may be gone after this increment.
  finished_.fetch_add(1);
  if (caller_sleeps_.load() != 0) finished_.notify_one();
  return true;
}

bool Pool::has_work() const {
  return std::any_of(shares_.begin(), shares_.end(), [](const Share& share) {
    const uint64_t ticket = share.ticket.load();
    return next_of(ticket) < end_of(ticket);
  });
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
      if (!has_work() && !stop_.load()) wake_.wait(seen);
      sleepers_.fetch_sub(1);
      spin = 0;
    }
  }
}

}  // namespace phloem
