// Attention over a paged KV cache: no gather, keys and values are read where they lie.
//
// Work goes by tiles of 32 keys. A tile is turned once into float32 (keys transposed, so that
// lanes are keys) and then serves all query vectors of the task: the heads of a group, times
// the rows of a prefill chunk. Softmax is online (Milakov & Gimelshein 2018) inside a segment of
// 256 keys; segments are combined in order, as in flash-decoding, whether one thread did all of
// them or several. Tiles and segments start at multiples of their size in the sequence, so the
// result depends neither on page size nor on how the work was cut.
#pragma once

#include <cmath>
#include <limits>

#include "model.h"
#include "simd.h"

namespace PHLOEM_ISA {

using namespace phloem;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kTileVectors = kKeyTile / kLanes;

// A running result over keys: part layout [maximum, sum, value[head_dim]].
inline void clear_part(float* part, int head_dim) {
  part[0] = kNever;
  part[1] = 0;
  for (int d = 0; d < head_dim; ++d) part[2 + d] = 0;
}

inline void merge_part(float* into, const float* from, int head_dim) {
  if (from[0] == kNever) return;
  const float top = into[0] > from[0] ? into[0] : from[0];
  const float keep = into[0] == kNever ? 0.0f : std::exp(into[0] - top);
  const float take = std::exp(from[0] - top);
  into[0] = top;
  into[1] = into[1] * keep + from[1] * take;
  for (int d = 0; d < head_dim; d += kLanes) {
    const F old = mul(load(into + 2 + d), splat(keep));
    store(into + 2 + d, fma(load(from + 2 + d), splat(take), old));
  }
}

inline void combine(const float* parts, int count, int64_t stride, int head_dim, float* out) {
  float total[2 + 256];
  clear_part(total, head_dim);
  for (int i = 0; i < count; ++i) merge_part(total, parts + i * stride, head_dim);
  const F inverse = splat(1.0f / total[1]);
  for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(total + 2 + d), inverse));
}

// Rows of the pool for keys [first, first + count) of a sequence: element offsets.
inline void locate(const AttentionArgs& args, const AttentionTask& task, int64_t first, int count,
                   int64_t* offsets) {
  const Batch& batch = *args.batch;
  const ModelConfig& c = *args.config;
  const int64_t* pages = batch.pages + task.seq * batch.max_pages;
  for (int i = 0; i < count; ++i) {
    const int64_t key = first + i;
    const int64_t slot = pages[key / batch.page_size] * batch.page_size + key % batch.page_size;
    offsets[i] = (slot * c.kv_heads + task.kv_head) * c.head_dim;
  }
}

// keys -> out[d][32], zero where there is no key. Words hold two neighbouring dimensions.
inline void transpose_keys(const uint16_t* keys, const int64_t* offsets, int count, int head_dim,
                           float* out) {
  constexpr int step = 2 * kLanes;  // dimensions in one vector of a row
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    for (int d = 0; d < head_dim; d += step) {
      const int pairs = head_dim - d < step ? (head_dim - d) / 2 : kLanes;
      I x[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int key = v * kLanes + i;
        if (key >= count) {
          x[i] = splat_i32(0);
        } else if (pairs == kLanes) {
          x[i] = load_bytes(keys + offsets[key] + d);
        } else {
          uint32_t words[kLanes] = {};
          std::memcpy(words, keys + offsets[key] + d, pairs * sizeof *words);
          x[i] = load_bytes(words);
        }
      }
      transpose(x);
      for (int i = 0; i < pairs; ++i) {
        float* to = out + (d + 2 * i) * kKeyTile + v * kLanes;
        store(to, bits_to_float(shift_left16(x[i])));
        store(to + kKeyTile, bits_to_float(high_half(x[i])));
      }
    }
  }
}

inline void widen_values(const uint16_t* values, const int64_t* offsets, int count, int head_dim,
                         float* out) {
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < head_dim; d += kLanes) {
      store(out + i * head_dim + d, load_bf16(values + offsets[i] + d));
    }
  }
}

// scores[q][32] = queries[q] . keys, for QUERIES vectors at once.
template <int QUERIES>
void score(const float* const* queries, const float* keys, int head_dim, float* scores) {
  F acc[QUERIES][kTileVectors];
#pragma GCC unroll 16
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) acc[q][v] = zero();
  }
  for (int d = 0; d < head_dim; ++d) {
    F k[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) k[v] = load(keys + d * kKeyTile + v * kLanes);
#pragma GCC unroll 16
    for (int q = 0; q < QUERIES; ++q) {
      const F x = splat(queries[q][d]);
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) acc[q][v] = fma(x, k[v], acc[q][v]);
    }
  }
#pragma GCC unroll 16
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) store(scores + q * kKeyTile + v * kLanes, acc[q][v]);
  }
}

// The keys of a tile that a query sees: [begin, end), may reach beyond the tile or be empty.
struct Visible {
  int begin, end;
};

// x where visible, else `hidden`, for lanes [first, first + kLanes) of the tile.
inline F show(F x, Visible seen, int first, F hidden) {
  const auto lane = [first](int key) {
    return key < first ? 0 : key > first + kLanes ? kLanes : key - first;
  };
  if (seen.end < first + kLanes) x = first_lanes(x, lane(seen.end), hidden);
  if (seen.begin > first) x = first_lanes(hidden, lane(seen.begin), x);
  return x;
}

// Turns the scores of one query into weights, and rescales its running result.
inline void soften(float* scores, Visible seen, int head_dim, float* part) {
  F x[kTileVectors];
  F top = splat(kNever);
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    x[v] = show(load(scores + v * kLanes), seen, v * kLanes, splat(kNever));
    top = max(top, x[v]);
  }
  const float tile_top = max_of(top);
  const float highest = part[0] > tile_top ? part[0] : tile_top;
  F total = zero();
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    // Hidden lanes again: with no visible key at all, highest is -inf and exp gives NaN.
    const F weight = show(exp(sub(x[v], splat(highest))), seen, v * kLanes, zero());
    store(scores + v * kLanes, weight);
    total = add(total, weight);
  }
  if (highest != part[0]) {
    const float keep = part[0] == kNever ? 0.0f : std::exp(part[0] - highest);
    part[0] = highest;
    part[1] *= keep;
    for (int d = 0; d < head_dim; d += kLanes) {
      store(part + 2 + d, mul(load(part + 2 + d), splat(keep)));
    }
  }
  part[1] += sum(total);
}

// part.value[d, d + VECTORS * kLanes) += weights . values, for QUERIES vectors at once.
template <int QUERIES, int VECTORS>
void mix(const float* weights, const float* values, int count, int head_dim, int d,
         float* parts) {
  const int stride = 2 + head_dim;
  F acc[QUERIES][VECTORS];
#pragma GCC unroll 16
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) acc[q][v] = load(parts + q * stride + 2 + d + v * kLanes);
  }
  for (int i = 0; i < count; ++i) {
    F x[VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) x[v] = load(values + i * head_dim + d + v * kLanes);
#pragma GCC unroll 16
    for (int q = 0; q < QUERIES; ++q) {
      const F w = splat(weights[q * kKeyTile + i]);
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) acc[q][v] = fma(w, x[v], acc[q][v]);
    }
  }
#pragma GCC unroll 16
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(parts + q * stride + 2 + d + v * kLanes, acc[q][v]);
  }
}

// Query vectors done together: as many sums as the registers hold.
constexpr int kTogether = kLanes == 16 ? 6 : 2;

template <int QUERIES>
void tile_of(const float* const* queries, const Visible* visible, int count, int head_dim,
             const float* keys, const float* values, float* scores, float* parts) {
  score<QUERIES>(queries, keys, head_dim, scores);
#pragma GCC unroll 16
  for (int q = 0; q < QUERIES; ++q) {
    soften(scores + q * kKeyTile, visible[q], head_dim, parts + q * (2 + head_dim));
  }
  int d = 0;
  for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
    mix<QUERIES, 4>(scores, values, count, head_dim, d, parts);
  }
  for (; d < head_dim; d += kLanes) mix<QUERIES, 1>(scores, values, count, head_dim, d, parts);
}

template <int MOST>
void tile_some(int queries, const float* const* query, const Visible* visible, int count,
               int head_dim, const float* keys, const float* values, float* scores,
               float* parts) {
  if (queries == MOST) {
    tile_of<MOST>(query, visible, count, head_dim, keys, values, scores, parts);
  } else if constexpr (MOST > 1) {
    tile_some<MOST - 1>(queries, query, visible, count, head_dim, keys, values, scores, parts);
  }
}

inline void attend(const AttentionArgs* args, const AttentionTask* task) {
  const ModelConfig& c = *args->config;
  const Batch& batch = *args->batch;
  const int head_dim = c.head_dim, stride = 2 + head_dim, folded = c.heads / c.kv_heads;
  const int queries = (task->row_end - task->row_begin) * folded;
  float* keys = args->scratch;
  float* values = keys + kKeyTile * head_dim;
  float* scores = values + kKeyTile * head_dim;
  float* segment_parts = scores + kQueryBlock * kKeyTile;
  float* total_parts = segment_parts + kQueryBlock * stride;

  const float* query[kQueryBlock];
  int64_t context[kQueryBlock];  // query q sees keys [0, context[q])
  for (int q = 0; q < queries; ++q) {
    const int64_t row = task->row_begin + q / folded;
    query[q] = args->queries + row * args->query_stride +
               (task->kv_head * folded + q % folded) * int64_t{head_dim};
    context[q] = batch.positions[row] + 1;
    clear_part(total_parts + q * stride, head_dim);
  }
  // With a window, query q sees keys [context[q] - window, context[q]).
  const int64_t window = c.window > 0 ? c.window : context[queries - 1];
  const int64_t longest = context[queries - 1], oldest = context[0] - window;
  const int64_t end = int64_t{task->segment_end} * kSegment;
  for (int64_t s = int64_t{task->segment_begin} * kSegment; s < end && s < longest;
       s += kSegment) {
    for (int q = 0; q < queries; ++q) clear_part(segment_parts + q * stride, head_dim);
    for (int64_t first = s; first < s + kSegment && first < longest; first += kKeyTile) {
      if (first + kKeyTile <= oldest) continue;
      const int count = static_cast<int>(longest - first < kKeyTile ? longest - first : kKeyTile);
      int64_t offsets[kKeyTile];
      locate(*args, *task, first, count, offsets);
      transpose_keys(args->keys, offsets, count, head_dim, keys);
      widen_values(args->values, offsets, count, head_dim, values);
      int q = 0;
      while (q < queries && context[q] <= first) ++q;  // rows that end before this tile
      for (; q < queries; q += kTogether) {
        const int some = queries - q < kTogether ? queries - q : kTogether;
        Visible visible[kTogether];
        for (int i = 0; i < some; ++i) {
          const int64_t last = context[q + i] - first;
          visible[i] = {static_cast<int>(last - window), static_cast<int>(last)};
        }
        tile_some<kTogether>(some, query + q, visible, count, head_dim, keys, values,
                             scores, segment_parts + q * stride);
      }
    }
    for (int q = 0; q < queries; ++q) {
      merge_part(total_parts + q * stride, segment_parts + q * stride, head_dim);
    }
  }
  for (int q = 0; q < queries; ++q) {
    const int64_t part = task->first_part + int64_t{q / folded} * task->parts_per_row;
    float* to = args->parts + ((part * c.kv_heads + task->kv_head) * folded + q % folded) * stride;
    std::memcpy(to, total_parts + q * stride, stride * sizeof(float));
  }
}

}  // namespace PHLOEM_ISA
