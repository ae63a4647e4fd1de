// The forward pass: all layers in one call, so that nothing of Python or of an operator
// library is paid per layer. The arithmetic is in the kernels; here is the order of things and
// how work is cut for the threads. Which thread does a piece never changes a result.
#include "forward.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace phloem {
namespace {

// A matrix piece holds at most this many rows: their packed form stays in a core's cache while
// the weights of a few groups stream through it.
constexpr int64_t kRowBlock = 64;
constexpr int64_t kRowsPerPiece = 4;

// Adds the time of its own life to a sum.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum) {}
  ~Timed() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  Clock::time_point start_ = Clock::now();
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The rows [row_begin, row_end) of a product, for the units [begin, end) of its outputs.
struct Piece {
  int64_t begin, end, row_begin, row_end;
};

GemmTask task_of(const Matrix& matrix, const PackedRows& rows, const Piece& piece, int64_t group,
                  int64_t group_end, float* out, int64_t stride) {
  return {&matrix,
          &rows,
          static_cast<int32_t>(piece.row_begin),
          static_cast<int32_t>(piece.row_end),
          static_cast<int32_t>(group),
          static_cast<int32_t>(group_end),
          out,
          stride,
          false};
}

const char* find_fault(const Batch& b, const ModelConfig& c) {
  for (int64_t r = 0; r < b.rows; ++r) {
    if (b.tokens[r] < 0 || b.tokens[r] >= c.vocab) return "a token id is outside the vocabulary";
    if (b.slots[r] < 0 || b.slots[r] >= b.pool_pages * b.page_size) {
      return "a KV slot is outside the pool";
    }
  }
  if (b.query_starts[0] != 0 || b.query_starts[b.seqs] != b.rows) {
    return "query_starts does not cover the rows";
  }
  for (int64_t s = 0; s < b.seqs; ++s) {
    const int64_t begin = b.query_starts[s], end = b.query_starts[s + 1];
    if (begin >= end) return "a sequence has no rows";
    if (b.context_lens[s] < end - begin || b.context_lens[s] > b.max_pages * b.page_size) {
      return "context_lens does not fit the rows or the page table";
    }
    for (int64_t r = begin; r < end; ++r) {
      if (b.positions[r] != b.context_lens[s] - (end - r)) return "positions are not consecutive";
    }
    for (int64_t p = 0; p < ceil_div(b.context_lens[s], b.page_size); ++p) {
      const int64_t page = b.pages[s * b.max_pages + p];
      if (page < 0 || page >= b.pool_pages) return "a page is outside the pool";
    }
  }
  for (int64_t i = 0; i < b.wanted; ++i) {
    if (b.logit_rows[i] < 0 || b.logit_rows[i] >= b.rows) return "a logit row is not in the batch";
  }
  return nullptr;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const Layer* layers, const KernelTable& kernels,
                 int threads)
    : config_(config),
      layers_(layers, layers + config.layers),
      kernels_(kernels),
      pool_(threads),
      head_width_(int64_t{config.heads} * config.head_dim),
      widest_(std::max(int64_t{config.hidden}, head_width_)),
      starts_(threads + 1),
      row_scratch_(threads),
      attention_scratch_(threads) {}

const char* Decoder::forward(const Batch& batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Timed timed(seconds_[kTotal]);
  if (const char* fault = find_fault(batch, config_)) return fault;
  if (batch.rows == 0) return nullptr;
  const int64_t rows = batch.rows, hidden = config_.hidden, half = config_.rotary_dim / 2;
  const int64_t tiled = ceil_div(std::max(rows, batch.wanted), kTile) * kTile;
  hidden_ = hidden_store_.get(rows * hidden);
  queries_ = queries_store_.get(rows * head_width_);
  cos_ = cos_store_.get(rows * half);
  sin_ = sin_store_.get(rows * half);
  packed_ = packed_store_.get(tiled, widest_);
  gated_ = gated_store_.get(tiled, config_.intermediate);
  plan(batch);
  for_rows(rows, [&](int64_t r, int) {
    kernels_.read_row(&config_.embedding, batch.tokens[r], hidden_ + r * hidden);
    for (int64_t i = 0; i < half; ++i) {
      // The product is rounded to float32, as in the checkpoints' own code.
      const float angle = static_cast<float>(batch.positions[r]) * config_.inverse_frequencies[i];
      cos_[r * half + i] = static_cast<float>(std::cos(double{angle})) * config_.rope_factor;
      sin_[r * half + i] = static_cast<float>(std::sin(double{angle})) * config_.rope_factor;
    }
  });
  for (int i = 0; i < config_.layers; ++i) run_layer(batch, i);
  // The last layer has left the wanted rows alone, in their order.
  pack_normed(hidden_, config_.final_norm, config_.head, batch.wanted);
  write_logits(batch);
  return nullptr;
}

void Decoder::times(double* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::copy_n(seconds_, int{kShares}, out);
}

// Attention tasks: (sequence, rows, KV heads), and also key segments where there would be too few
// tasks for the threads. Rows of split sequences have a part per segment. A few rows (a token and
// its guesses) take as many KV heads as fit, because the heads of a token lie side by side in
// memory; a chunk of a prompt takes many rows instead, which share the work of reading a key.
void Decoder::plan(const Batch& batch) {
  const int32_t folded = config_.heads / config_.kv_heads;
  const int64_t enough = 4 * pool_.threads();
  const int32_t block = kQueryBlock / folded;
  int64_t blocks = 0;
  for (int64_t s = 0; s < batch.seqs; ++s) {
    blocks += ceil_div(batch.query_starts[s + 1] - batch.query_starts[s], block);
  }
  const bool split = blocks * config_.kv_heads < enough;
  tasks_.clear();
  part_starts_.assign(1, 0);
  for (int64_t s = 0; s < batch.seqs; ++s) {
    const auto begin = static_cast<int32_t>(batch.query_starts[s]);
    const auto end = static_cast<int32_t>(batch.query_starts[s + 1]);
    const auto segments = static_cast<int32_t>(ceil_div(batch.context_lens[s], kSegment));
    const int32_t step = split ? 1 : segments, parts = split ? segments : 1;
    const int32_t heads = blocks >= enough ? std::max(block / (end - begin), 1) : 1;
    const int64_t first_part = part_starts_.back();
    for (int32_t r = begin; r < end; ++r) part_starts_.push_back(part_starts_.back() + parts);
    for (int32_t head = 0; head < config_.kv_heads; head += heads) {
      const int32_t head_end = std::min(head + heads, config_.kv_heads);
      for (int32_t r = begin; r < end; r += block) {
        for (int32_t i = 0; i < parts; ++i) {
          tasks_.push_back({static_cast<int32_t>(s), head, head_end, r, std::min(r + block, end),
                            i * step, (i + 1) * step, first_part + int64_t{r - begin} * parts + i,
                            parts});
        }
      }
    }
  }
  std::vector<bool> wanted(batch.rows);
  for (int64_t i = 0; i < batch.wanted; ++i) wanted[batch.logit_rows[i]] = true;
  last_tasks_.clear();
  for (const AttentionTask& task : tasks_) {
    const auto begin = wanted.begin();
    if (std::find(begin + task.row_begin, begin + task.row_end, true) != begin + task.row_end) {
      last_tasks_.push_back(task);
    }
  }
  parts_ = parts_store_.get(part_starts_.back() * config_.heads * (2 + config_.head_dim));
}

// After the last layer's attention only wanted rows are gone on with.
void Decoder::run_layer(const Batch& batch, int index) {
  const Layer& layer = layers_[index];
  const bool last = index + 1 == config_.layers;
  const int64_t rows = last ? batch.wanted : batch.rows;
  const int64_t hidden = config_.hidden;
  pack_normed(hidden_, layer.attention_norm, layer.qkv, batch.rows);
  project(batch, index);
  run_tasks(batch, index, last ? last_tasks_ : tasks_);
  pack_attended(layer, rows, last ? batch.logit_rows : nullptr);
  if (last) {
    float* wanted = wanted_store_.get(rows * hidden);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(hidden_ + batch.logit_rows[i] * hidden, hidden, wanted + i * hidden);
    }
    hidden_ = wanted;
  }
  add_product(layer.output, packed_, rows);
  pack_normed(hidden_, layer.mlp_norm, layer.gate_up, rows);
  gate(layer, rows);
  add_product(layer.down, gated_, rows);
}

// Queries, keys and values, head by head.
void Decoder::project(const Batch& batch, int index) {
  const Matrix& qkv = layers_[index].qkv;
  const int64_t head_dim = config_.head_dim, groups = head_dim / kGroup;
  const Gemm gemm = gemm_for(qkv.format);
  for_pieces(batch.rows, config_.heads + 2 * config_.kv_heads, groups, [&](Piece p, int thread) {
    float* scratch = row_scratch_[thread].get(kRowBlock * head_dim);
    for (int64_t h = p.begin; h < p.end; ++h) {
      const bool is_query = h < config_.heads;
      const int64_t stride = is_query ? head_width_ : head_dim;
      float* x = is_query ? queries_ + p.row_begin * stride + h * head_dim : scratch;
      const GemmTask task = task_of(qkv, packed_, p, h * groups, (h + 1) * groups, x, stride);
      gemm(&task);
      for (int64_t r = p.row_begin; r < p.row_end; ++r, x += stride) {
        finish_head(batch, index, h, r, x);
      }
    }
  });
}

// Rotates a query or key, and stores a key or value.
void Decoder::finish_head(const Batch& batch, int index, int64_t head, int64_t row, float* x) {
  const Layer& layer = layers_[index];
  const int64_t heads = config_.heads, kv_heads = config_.kv_heads, half = config_.rotary_dim / 2;
  const int size = config_.head_dim;
  const bool is_query = head < heads, is_value = head >= heads + kv_heads;
  if (!is_value) {
    const float* norm = is_query ? layer.query_norm : layer.key_norm;
    if (norm != nullptr) kernels_.rms_norm(x, norm, config_.norm_epsilon, size, x);
    kernels_.rotate(x, cos_ + row * half, sin_ + row * half, config_.rotary_dim, size,
                    is_query ? config_.attention_scale : 1.0f);
  }
  if (is_query) return;
  uint16_t* pool = is_value ? batch.values[index] : batch.keys[index];
  kernels_.store_bf16(x, size, pool + (batch.slots[row] * kv_heads + (head - heads) % kv_heads) * size);
}

// silu(gate) * up, packed for the down projection. A piece has both of its outputs, so that neither
// goes through memory.
void Decoder::gate(const Layer& layer, int64_t rows) {
  const int64_t inner = config_.intermediate, groups = kBlock / kGroup;
  const Gemm gemm = gemm_for(layer.gate_up.format);
  for_pieces(rows, inner / kBlock, 2 * groups, [&](Piece p, int thread) {
    const int64_t width = (p.end - p.begin) * kBlock, up = inner / kGroup;
    float* x = row_scratch_[thread].get((p.row_end - p.row_begin) * 2 * width);
    for (int64_t i = 0; i < 2; ++i) {
      const GemmTask task = task_of(layer.gate_up, packed_, p, p.begin * groups + i * up,
                                     p.end * groups + i * up, x + i * width, 2 * width);
      gemm(&task);
    }
    for (int64_t r = p.row_begin; r < p.row_end; ++r, x += 2 * width) {
      kernels_.silu_mul(x, x + width, static_cast<int>(width), x);
      kernels_.pack_row(x, static_cast<int>(p.begin * kBlock), static_cast<int>(width),
                        static_cast<int>(inner), layer.down.format, r, &gated_);
    }
  });
}

// What attention gave the rows which[0], which[1] ... (null: all), packed for the output
// projection.
void Decoder::pack_attended(const Layer& layer, int64_t rows, const int64_t* which) {
  const int64_t head_dim = config_.head_dim, size = 2 + head_dim, stride = config_.heads * size;
  for_rows(rows, [&](int64_t i, int thread) {
    float* row = row_scratch_[thread].get(widest_);
    const int64_t r = which == nullptr ? i : which[i];
    const float* parts = parts_ + part_starts_[r] * stride;
    const auto count = static_cast<int>(part_starts_[r + 1] - part_starts_[r]);
    for (int64_t h = 0; h < config_.heads; ++h) {
      kernels_.combine(parts + h * size, count, stride, config_.head_dim, row + h * head_dim);
    }
    const int width = static_cast<int>(head_width_);
    kernels_.pack_row(row, 0, width, width, layer.output.format, i, &packed_);
  });
}

void Decoder::run_tasks(const Batch& batch, int index, const std::vector<AttentionTask>& tasks) {
  const Timed timed(seconds_[kAttention]);
  const int64_t scratch = attention_scratch(config_.head_dim);
  pool_.run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    const AttentionArgs args{&config_,            &batch, queries_,
                             head_width_,         batch.keys[index],
                             batch.values[index], parts_, attention_scratch_[thread].get(scratch)};
    kernels_.attend(&args, &tasks[i]);
  });
}

void Decoder::pack_normed(const float* x, const float* norm, const Matrix& reader, int64_t rows) {
  const int hidden = config_.hidden;
  for_rows(rows, [&](int64_t r, int thread) {
    float* row = row_scratch_[thread].get(widest_);
    kernels_.rms_norm(x + r * hidden, norm, config_.norm_epsilon, hidden, row);
    kernels_.pack_row(row, 0, hidden, hidden, reader.format, r, &packed_);
  });
}

Gemm Decoder::gemm_for(int format) const {
  return format == kQ4 ? kernels_.gemm_q4 : format == kQ8 ? kernels_.gemm_q8 : kernels_.gemm_bf16;
}

// hidden += packed x matrix
void Decoder::add_product(const Matrix& matrix, const PackedRows& packed, int64_t rows) {
  const int64_t hidden = config_.hidden;
  const Gemm gemm = gemm_for(matrix.format);
  for_pieces(rows, ceil_div(matrix.outputs, kGroup), 1, [&](Piece p, int) {
    float* to = hidden_ + p.row_begin * hidden + p.begin * kGroup;
    GemmTask task = task_of(matrix, packed, p, p.begin, p.end, to, hidden);
    task.accumulate = true;
    gemm(&task);
  });
}

// The likeliest token is looked for while a piece's logits are near: there are more than fit a cache.
void Decoder::write_logits(const Batch& batch) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const int64_t rows = batch.wanted, vocab = config_.vocab;
  Largest* largest = largest_store_.get(pool_.threads() * rows);
  std::fill_n(largest, pool_.threads() * rows, Largest{-infinity, vocab});
  const Gemm gemm = gemm_for(config_.head.format);
  for_pieces(rows, ceil_div(vocab, kGroup), 1, [&](Piece p, int thread) {
    const int64_t first = p.begin * kGroup, end = std::min(p.end * kGroup, vocab);
    float* out = batch.logits + p.row_begin * vocab + first;
    const GemmTask task = task_of(config_.head, packed_, p, p.begin, p.end, out, vocab);
    gemm(&task);
    for (int64_t r = p.row_begin; r < p.row_end; ++r, out += vocab) {
      const int at = kernels_.first_largest(out, static_cast<int>(end - first));
      const Largest found = at < 0 ? Largest{infinity, -1} : Largest{out[at], first + at};
      Largest& known = largest[thread * rows + r];
      if (found.beats(known)) known = found;
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    Largest best = largest[r];
    for (int t = 1; t < pool_.threads(); ++t) {
      if (largest[t * rows + r].beats(best)) best = largest[t * rows + r];
    }
    batch.likeliest[r] = best.token;
  }
}

// A product, and what is done to its results while they are in the nearest cache: pieces of some
// rows x some units of outputs, which are so many groups each.
// Enough pieces that no thread waits long for another, few enough that claiming is free.
template <class Body>
void Decoder::for_pieces(int64_t rows, int64_t units, int64_t groups, const Body& body) {
  const Timed timed(seconds_[kMatrices]);
  const int64_t row_blocks = ceil_div(rows, kRowBlock);
  const int64_t most = std::max<int64_t>((row_blocks > 1 ? 16 : 32) / groups, 1);
  const int64_t chunk = std::clamp<int64_t>(units / (4 * pool_.threads()), 1, most);
  const int64_t chunks = ceil_div(units, chunk), threads = pool_.threads();
  const auto do_piece = [&](int64_t part, int64_t block, int thread) {
    const int64_t unit = part * chunk, row = block * kRowBlock;
    body(Piece{unit, std::min(unit + chunk, units), row, std::min(row + kRowBlock, rows)}, thread);
  };
  // Neighbouring pieces share weights: row blocks are the inner index.
  if (row_blocks < threads) {
    return pool_.run(chunks * row_blocks, [&](int64_t piece, int thread) {
      do_piece(piece / row_blocks, piece % row_blocks, thread);
    });
  }
  // Each thread has rows of its own, the same in every product.
  for (int64_t t = 0; t <= threads; ++t) starts_[t] = row_blocks * t / threads * chunks;
  pool_.run(starts_, [&](int64_t piece, int thread) {
    const auto share = std::upper_bound(starts_.begin(), starts_.end(), piece) - 1;
    const int64_t own = (share[1] - share[0]) / chunks, at = piece - share[0];
    do_piece(at / own, share[0] / chunks + at % own, thread);
  });
}

// Work of well under a microsecond a row: one or two rows are not worth a barrier. Many are cut by
// tiles, because the rows of a tile share cache lines where they are packed: two cores that write to
// the same line take it from each other with every block.
template <class Body>
void Decoder::for_rows(int64_t rows, const Body& body) {
  if (rows <= 2) {
    for (int64_t r = 0; r < rows; ++r) body(r, 0);
    return;
  }
  const int64_t each = rows < 8 * kRowsPerPiece ? 1 : rows < 3 * kTile ? kRowsPerPiece : kTile;
  pool_.run(ceil_div(rows, each), [&](int64_t piece, int thread) {
    const int64_t end = std::min((piece + 1) * each, rows);
    for (int64_t r = piece * each; r < end; ++r) body(r, thread);
  });
}

}  // namespace phloem
