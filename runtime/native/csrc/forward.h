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

using Gemm = void (*)(const GemmTask*);

class PackedScratch {
 public:
  // For so many rows (whole tiles) of so many values.
  PackedRows get(int64_t rows, int64_t size) {
    const int64_t values = rows * size, blocks = values / kBlock;
    return {bytes_.get(values), scales_.get(blocks), sums_.get(blocks), offsets_.get(blocks),
            words_.get(values)};
  }

 private:
  Scratch<int8_t> bytes_;
  Scratch<float> scales_, sums_;
  Scratch<int32_t> offsets_;
  Scratch<uint16_t> words_;
};

class Decoder {
 public:
  Decoder(const ModelConfig& config, const Layer* layers, const KernelTable& kernels, int threads);

  // Returns null, or what is wrong with the batch (nothing was written then).
  const char* forward(const Batch& batch);

  // Seconds of all passes so far: in matrix products (and what is done to their results piece by
  // piece), in attention, and in all.
  void times(double* out);

 private:
  void plan(const Batch& batch);
  void run_layer(const Batch& batch, int index);
  void project(const Batch& batch, int index);
  void finish_head(const Batch& batch, int index, int64_t head, int64_t row, float* x);
  void gate(const Layer& layer, int64_t rows);
  void run_tasks(const Batch& batch, int index, const std::vector<AttentionTask>& tasks);
  void pack_attended(const Layer& layer, int64_t rows, const int64_t* which);
  void pack_normed(const float* x, const float* norm, const Matrix& reader, int64_t rows);
  Gemm gemm_for(int format) const;
  void add_product(const Matrix& matrix, const PackedRows& packed, int64_t rows);
  void write_logits(const Batch& batch);
  template <class Body>
  void for_pieces(int64_t rows, int64_t units, int64_t groups, const Body& body);
  template <class Body>
  void for_rows(int64_t rows, const Body& body);

  // The first largest logit of some tokens, where NaN is the largest of all, at -1.
  struct Largest {
    float value;
    int64_t token;
    bool beats(const Largest& other) const {
      return value > other.value || (value == other.value && token < other.token);
    }
  };

  enum Share { kMatrices, kAttention, kTotal, kShares };

  ModelConfig config_;
  std::vector<Layer> layers_;
  double seconds_[kShares] = {};
  const KernelTable& kernels_;
  Pool pool_;
  std::mutex mutex_;  // scratch and pool serve one pass at a time
  int64_t head_width_, widest_;

  // The plan of this batch's attention, the same for all layers. Row r owns the parts
  // [part_starts_[r], part_starts_[r + 1]).
  std::vector<AttentionTask> tasks_, last_tasks_;  // the last layer's: those with wanted rows
  std::vector<int64_t> part_starts_;

  std::vector<int64_t> starts_;  // of the threads' shares of a product

  PackedRows packed_{}, gated_{};  // what the next product reads; gated_: the down projection
  float *hidden_ = nullptr, *queries_ = nullptr, *parts_ = nullptr;
  float *cos_ = nullptr, *sin_ = nullptr;
  PackedScratch packed_store_, gated_store_;
  Scratch<Largest> largest_store_;
  Scratch<float> hidden_store_, queries_store_, parts_store_, cos_store_, sin_store_, wanted_store_;
  std::vector<Scratch<float>> row_scratch_, attention_scratch_;  // one per thread
};

}  // namespace phloem
