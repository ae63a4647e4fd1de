// One forward pass of a Llama-family decoder: see forward.cpp.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "model.h"
#include "threads.h"

namespace phloem {

// A scratch array that only grows, aligned to cache lines. Its content is not kept, but always
// initialised: kernels may read rows beyond the batch, and throw the result away.
template <class T>
class Scratch {
 public:
  T* get(int64_t count) {
    if (count > size_) {
      const auto bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
      T* grown = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (grown == nullptr) throw std::bad_alloc();
      data_.reset(static_cast<T*>(std::memset(grown, 0, bytes)));
      size_ = count;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  int64_t size_ = 0;
};

class Decoder {
 public:
  Decoder(const ModelConfig& config, const Layer* layers, const KernelTable& kernels, int threads);

  // Returns null, or what is wrong with the batch (nothing was written then).
  const char* forward(const Batch& batch);

  // Seconds of all passes so far: in matrix products, in attention, and in all.
  void times(double* out);

 private:
  void plan(const Batch& batch);
  void run_layer(const Batch& batch, int index);
  void store_keys(const Batch& batch, int index);
  void run_tasks(const Batch& batch, int index, const std::vector<AttentionTask>& tasks);
  void pack_attended(const Layer& layer, int64_t rows, const int64_t* which);
  void pack_normed(const float* x, const float* norm, const Matrix& reader, int64_t rows);
  void multiply(const Matrix& matrix, int64_t rows, float* out, int64_t stride, bool accumulate);
  template <class Body>
  void for_rows(int64_t rows, const Body& body);

  enum Share { kMatrices, kAttention, kTotal, kShares };

  ModelConfig config_;
  std::vector<Layer> layers_;
  double seconds_[kShares] = {};
  const KernelTable& kernels_;
  Pool pool_;
  std::mutex mutex_;  // scratch and pool serve one pass at a time
  int64_t head_width_, qkv_width_, widest_;

  // The plan of this batch's attention, the same for all layers. Row r owns the parts
  // [part_starts_[r], part_starts_[r + 1]).
  std::vector<AttentionTask> tasks_, last_tasks_;  // the last layer's: those with wanted rows
  std::vector<int64_t> part_starts_;

  PackedRows packed_{};
  float *hidden_ = nullptr, *qkv_ = nullptr, *gate_up_ = nullptr, *parts_ = nullptr;
  float *cos_ = nullptr, *sin_ = nullptr;
  Scratch<float> hidden_store_, qkv_store_, gate_up_store_, parts_store_, cos_store_, sin_store_;
  Scratch<float> wanted_store_, scales_, sums_;
  Scratch<int32_t> offsets_;
  Scratch<int8_t> bytes_;
  Scratch<uint16_t> words_;
  std::vector<Scratch<float>> row_scratch_, attention_scratch_;  // one per thread
};

}  // namespace phloem
