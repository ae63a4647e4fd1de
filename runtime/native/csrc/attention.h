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
  if (into[0] == kNever) {
    std::memcpy(into, from, (2 + head_dim) * sizeof *into);
    return;
  }
  const float top = into[0] > from[0] ? into[0] : from[0];
  float scales[kLanes] = {into[0] - top, from[0] - top};
  store(scales, exp(load(scales)));
  const float keep = scales[0], take = scales[1];
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

// Where the keys of a tile lie in the pool: element offsets of the task's first KV head.
template <int SIZE>
struct PlaceOf {
  int count;
  int64_t offsets[SIZE];
};
using Place = PlaceOf<kKeyTile>;

// Keys [first, end) of a sequence, at most SIZE; end may be <= first.
template <int SIZE>
PlaceOf<SIZE> locate(const AttentionArgs& args, const AttentionTask& task, int64_t first,
                     int64_t end) {
  const Batch& batch = *args.batch;
  const ModelConfig& c = *args.config;
  const int64_t* pages = batch.pages + task.seq * batch.max_pages;
  const int64_t left = end - first;
  PlaceOf<SIZE> place;
  place.count = left <= 0 ? 0 : left < SIZE ? static_cast<int>(left) : SIZE;
  int64_t page = first / batch.page_size, slot = first % batch.page_size;
  for (int i = 0; i < place.count; ++i, ++slot) {
    if (slot == batch.page_size) {
      slot = 0;
      ++page;
    }
    const int64_t at = pages[page] * batch.page_size + slot;
    place.offsets[i] = (at * c.kv_heads + task.kv_begin) * c.head_dim;
  }
  return place;
}

// The keys or values of one token, `width` numbers.
inline void prefetch_token(const uint16_t* from, int width) {
  for (int d = 0; d < width; d += 32) {
    _mm_prefetch(reinterpret_cast<const char*>(from + d), _MM_HINT_T1);
  }
}

// The rows of a token are short and far apart, so the hardware does not foresee them: while one
// tile is used, the next is asked for, in ascending order of addresses. Piece `h` of `heads`.
inline void prefetch_tile(const uint16_t* pool, const Place& next, int h, int heads,
                          int head_dim) {
  const int end = next.count * (h + 1) / heads;
  for (int i = next.count * h / heads; i < end; ++i) {
    prefetch_token(pool + next.offsets[i], heads * head_dim);
  }
}

// keys -> out[d][32], zero where there is no key. Words hold two neighbouring dimensions.
inline void transpose_keys(const uint16_t* keys, const Place& place, int head_dim,
                           float* out) {
  constexpr int step = 2 * kLanes;  // dimensions in one vector of a row
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    for (int d = 0; d < head_dim; d += step) {
      const int pairs = head_dim - d < step ? (head_dim - d) / 2 : kLanes;
      I x[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int key = v * kLanes + i;
        if (key >= place.count) {
          x[i] = splat_i32(0);
        } else if (pairs == kLanes) {
          x[i] = load_bytes(keys + place.offsets[key] + d);
        } else {
          uint32_t words[kLanes] = {};
          std::memcpy(words, keys + place.offsets[key] + d, pairs * sizeof *words);
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

inline void widen_values(const uint16_t* values, const Place& place, int head_dim,
                         float* out) {
  for (int i = 0; i < place.count; ++i) {
    for (int d = 0; d < head_dim; d += kLanes) {
      store(out + i * head_dim + d, load_bf16(values + place.offsets[i] + d));
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

// The query vectors of a task: KV head by KV head, row by row, head of the group by head.
struct Queries {
  int per_head, count;
  const float* vector[kQueryBlock];
  int64_t context[kQueryBlock];  // vector q sees keys [context[q] - window, context[q])
  int64_t part[kQueryBlock];     // where its result goes, in parts
};

inline Queries queries_of(const AttentionArgs& args, const AttentionTask& task) {
  const ModelConfig& c = *args.config;
  const int folded = c.heads / c.kv_heads, rows = task.row_end - task.row_begin;
  Queries queries;
  queries.per_head = rows * folded;
  queries.count = queries.per_head * (task.kv_end - task.kv_begin);
  int q = 0;
  for (int head = task.kv_begin * folded; head < task.kv_end * folded; head += folded) {
    for (int row = 0; row < rows; ++row) {
      for (int h = head; h < head + folded; ++h, ++q) {
        queries.vector[q] =
            args.queries + (task.row_begin + row) * args.query_stride + h * int64_t{c.head_dim};
        queries.context[q] = args.batch->positions[task.row_begin + row] + 1;
        queries.part[q] = (task.first_part + int64_t{row} * task.parts_per_row) * c.heads + h;
      }
    }
  }
  return queries;
}

// One tile of keys of one KV head for the query vectors [begin, end) of the task.
inline void attend_tile(const Queries& queries, int begin, int end, int64_t first, int64_t window,
                        int count, int head_dim, const float* keys, const float* values,
                        float* scores, float* parts) {
  int q = begin;
  while (q < end && queries.context[q] <= first) ++q;  // rows that end before this tile
  for (; q < end; q += kTogether) {
    const int some = end - q < kTogether ? end - q : kTogether;
    Visible visible[kTogether];
    for (int i = 0; i < some; ++i) {
      const int64_t last = queries.context[q + i] - first;
      visible[i] = {static_cast<int>(last - window), static_cast<int>(last)};
    }
    tile_some<kTogether>(some, queries.vector + q, visible, count, head_dim, keys, values, scores,
                         parts + q * (2 + head_dim));
  }
}

inline void attend(const AttentionArgs* args, const AttentionTask* task) {
  const ModelConfig& c = *args->config;
  const int head_dim = c.head_dim, stride = 2 + head_dim;
  float* keys = args->scratch;
  float* values = keys + kKeyTile * head_dim;
  float* scores = values + kKeyTile * head_dim;
  float* segment_parts = scores + kQueryBlock * kKeyTile;
  float* total_parts = segment_parts + kQueryBlock * stride;

  const Queries queries = queries_of(*args, *task);
  const int heads = task->kv_end - task->kv_begin;
  for (int q = 0; q < queries.count; ++q) clear_part(total_parts + q * stride, head_dim);
  const int64_t longest = queries.context[queries.count - 1];
  const int64_t window = c.window > 0 ? c.window : longest;
  const int64_t oldest = queries.context[0] - window;
  const int64_t end = int64_t{task->segment_end} * kSegment;
  for (int64_t s = int64_t{task->segment_begin} * kSegment; s < end && s < longest;
       s += kSegment) {
    for (int q = 0; q < queries.count; ++q) clear_part(segment_parts + q * stride, head_dim);
    for (int64_t first = s; first < s + kSegment && first < longest; first += kKeyTile) {
      if (first + kKeyTile <= oldest) continue;
      const Place place = locate<kKeyTile>(*args, *task, first, longest);
      // Two tiles ahead: one takes less time than memory does to answer.
      const Place next = locate<kKeyTile>(*args, *task, first + 2 * kKeyTile, longest);
      for (int h = 0; h < heads; ++h) {
        const int64_t shift = int64_t{h} * head_dim;
        prefetch_tile(args->keys, next, h, heads, head_dim);
        transpose_keys(args->keys + shift, place, head_dim, keys);
        prefetch_tile(args->values, next, h, heads, head_dim);
        widen_values(args->values + shift, place, head_dim, values);
        attend_tile(queries, h * queries.per_head, (h + 1) * queries.per_head, first, window,
                    place.count, head_dim, keys, values, scores, segment_parts);
      }
    }
    for (int q = 0; q < queries.count; ++q) {
      merge_part(total_parts + q * stride, segment_parts + q * stride, head_dim);
    }
  }
  for (int q = 0; q < queries.count; ++q) {
    std::memcpy(args->parts + queries.part[q] * stride, total_parts + q * stride,
                stride * sizeof(float));
  }
}

}  // namespace PHLOEM_ISA
