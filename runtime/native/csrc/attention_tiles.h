// Attention on the matrix unit (AMX), for heads of a multiple of 32 dimensions: the same segments
// and parts as in attention.h, in steps of 64 keys.
//
// Scores come as [16 keys][16 queries], so that keys are read where they lie in the pool and
// lanes are query vectors: largest scores and sums need no reduction across lanes. Queries and
// weights are rounded to bfloat16, as the cache is; a row's sums add the rounded weights. A query
// vector's numbers depend neither on its lane nor on the other lanes, so a row has the same bits
// in a chunk and alone.
#pragma once

#include <algorithm>

#include "attention.h"
#include "tiles.h"

namespace PHLOEM_ISA {

constexpr int kStep = 64, kLaneGroup = 16;

// Asks for a later step's keys and values, a few lines at a time while this one is worked on: all
// at once they would wait for each other, and the work for them.
class Ahead {
 public:
  // Piece `h` of `heads` of the tokens of `place`, of all heads of the task.
  Ahead(const AttentionArgs& args, const PlaceOf<kStep>& place, int h, int heads, int head_dim)
      : pools_{args.keys, args.values},
        place_(place),
        width_(heads * head_dim),
        at_(place.count * h / heads),
        begin_(at_),
        end_(place.count * (h + 1) / heads) {}

  // Keys or values of one token.
  void ask() {
    if (at_ == end_) {
      if (pool_ == 1) return;
      pool_ = 1;
      at_ = begin_;
      if (at_ == end_) return;
    }
    prefetch_token(pools_[pool_] + place_.offsets[at_++], width_);
  }

  void rest() {
    while (pool_ == 0 || at_ < end_) ask();
  }

 private:
  const uint16_t* pools_[2];
  const PlaceOf<kStep>& place_;
  int width_, at_, begin_, end_;
  int pool_ = 0;
};

// What the lanes of each group have so far.
struct Running {
  float* tops;     // [group][16]: largest score
  float* sums;     // [group][16]
  float* results;  // [group][head_dim / 16][16 queries][16 dimensions]

  // For a group whose first `lanes` lanes are used.
  void clear(int group, int lanes, int head_dim) const {
    const int64_t at = int64_t{group} * kLaneGroup;
    std::fill_n(tops + at, kLaneGroup, kNever);
    std::fill_n(sums + at, kLaneGroup, 0.0f);
    for (int d = 0; d < head_dim; d += 16) {
      std::fill_n(results + (at * head_dim + d * kLaneGroup), lanes * 16, 0.0f);
    }
  }
};

// Scratch of one thread, in this order; model.h says how much.
struct TileScratch {
  uint16_t* queries;  // [group][head_dim / 2][16 queries][2]
  uint16_t* keys;     // [64][head_dim], where a page is too small to read keys in place
  uint16_t* values;   // [2 halves][head_dim / 16][16 pairs of keys][16 dimensions][2]
  uint16_t* weights;  // [2 halves][16 queries][32 keys]
  float* scores[2];   // [64 keys][16 queries], of two groups in turn
  float* mixed;       // [head_dim / 16][16 queries][16 dimensions]
  float* keep;        // [16]
  Running segment;    // scores by log 2
  Running total;

  TileScratch(float* at, int head_dim) {
    const auto take = [&at](int64_t floats) {
      float* taken = at;
      at += (floats + 15) / 16 * 16;
      return taken;
    };
    queries = reinterpret_cast<uint16_t*>(take(int64_t{kQueryBlock} * head_dim * 8));
    keys = reinterpret_cast<uint16_t*>(take(kStep * head_dim / 2));
    values = reinterpret_cast<uint16_t*>(take(kStep * head_dim / 2));
    weights = reinterpret_cast<uint16_t*>(take(kStep * kLaneGroup / 2));
    for (float*& of_group : scores) of_group = take(kStep * kLaneGroup);
    mixed = take(int64_t{kLaneGroup} * head_dim);
    keep = take(kLaneGroup);
    for (Running* running : {&segment, &total}) {
      running->tops = take(kQueryBlock * kLaneGroup);
      running->sums = take(kQueryBlock * kLaneGroup);
      running->results = take(int64_t{kQueryBlock} * kLaneGroup * head_dim);
    }
  }
};

// 2^x for x <= 0, good to 4e-5, exactly 1 at 0; below -126 as at -126.
inline F exp2_coarse(F x) {
  x = max(x, splat(-126.0f));
  const F n = round(x), f = sub(x, n);
  F p = splat(9.6181291e-3f);
  p = fma(p, f, splat(5.5504109e-2f));
  p = fma(p, f, splat(2.4022651e-1f));
  p = fma(p, f, splat(6.9314718e-1f));
  p = fma(p, f, splat(1.0f));
  return _mm512_scalef_ps(p, n);
}

// A group of at most 16 query vectors of one KV head: [begin, end) of the task's.
struct Lanes {
  int begin, end;
  I contexts;       // of the lanes; 0 beyond the end
  int64_t shortest;  // least and greatest of them
  int64_t longest;
};

inline Lanes lanes_of(const Queries& queries, int begin, int end) {
  alignas(64) int32_t contexts[kLaneGroup] = {};
  Lanes lanes{begin, end, {}, queries.context[begin], 0};
  for (int q = begin; q < end; ++q) {
    contexts[q - begin] = static_cast<int32_t>(queries.context[q]);
    if (queries.context[q] < lanes.shortest) lanes.shortest = queries.context[q];
    if (queries.context[q] > lanes.longest) lanes.longest = queries.context[q];
  }
  lanes.contexts = load_bytes(contexts);
  return lanes;
}

// Queries times log2(e), for weights by exp2, as tiles of [pairs of dimensions][16 queries][2].
inline void pack_queries(const Queries& queries, const Lanes& lanes, int head_dim,
                         uint16_t* out) {
  for (int d = 0; d < head_dim; d += 32) {
    I words[kLaneGroup];  // of a query: 16 pairs of dimensions
    for (int lane = 0; lane < kLaneGroup; ++lane) {
      const int q = lanes.begin + lane;
      words[lane] = splat_i32(0);
      if (q >= lanes.end) continue;
      const auto bits = [&](int at) {
        return _mm512_cvtepi32_epi16(to_bf16(mul(load(queries.vector[q] + at), splat(1.44269504f))));
      };
      words[lane] = _mm512_inserti64x4(_mm512_castsi256_si512(bits(d)), bits(d + 16), 1);
    }
    transpose(words);
    for (int pair = 0; pair < kLaneGroup; ++pair) {
      _mm512_store_si512(out + (d / 2 + pair) * 2 * kLaneGroup, words[pair]);
    }
  }
}

// Pairs of keys side by side. The unpacking leaves dimensions in an order that `unmix` undoes.
inline void pack_values(const uint16_t* values, const PlaceOf<kStep>& place, int head_dim,
                        Ahead& ahead, uint16_t* out) {
  const int tiles = head_dim / 16;
  for (int pair = 0; pair < kStep / 2; ++pair) {
    ahead.ask();
    uint16_t* to = out + (pair / 16 * tiles * 16 + pair % 16) * 32;
    for (int d = 0; d < head_dim; d += 32, to += 2 * 16 * 32) {
      const auto row = [&](int key) {
        return key < place.count ? load_bytes(values + place.offsets[key] + d) : splat_i32(0);
      };
      const I a = row(2 * pair), b = row(2 * pair + 1);
      _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(to + 16 * 32, _mm512_unpackhi_epi16(a, b));
    }
  }
}

inline void unmix(const float* from, int head_dim, float* to) {  // from: one lane of results
  const I low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const I high = add_i32(low, splat_i32(8));
  for (int d = 0; d < head_dim; d += 32) {
    const F a = load(from + d * kLaneGroup), b = load(from + (d + 16) * kLaneGroup);
    store(to + d, _mm512_permutex2var_ps(a, low, b));
    store(to + d + 16, _mm512_permutex2var_ps(a, high, b));
  }
}

// scores[key][query] for the 64 keys of a step; `stride` bytes lie between two keys.
inline void score_tiles(const uint16_t* const* keys, int64_t stride, int count,
                        const uint16_t* queries, int head_dim, float* scores) {
  written(queries);
  for (int t = 0; t * 16 < count; ++t) {
    _tile_zero(0);
    for (int d = 0; d < head_dim; d += 32) {
      _tile_loadd(4, keys[t] + d, stride);
      _tile_loadd(5, queries + d * kLaneGroup, 64);
      _tile_dpbf16ps(0, 4, 5);
    }
    _tile_stored(0, scores + t * 16 * kLaneGroup, 64);
  }
}

// Turns scores into bfloat16 weights [query][key]; brings the running largest score and sum of
// each lane up to date, and says in `keep` what becomes of the result so far. ALL: every lane sees
// the whole step.
template <bool ALL>
void soften_lanes(const TileScratch& s, const Lanes& lanes, int group, int64_t first,
                  int64_t window, int count, Ahead& ahead) {
  const float* scores = s.scores[group % 2];
  const I last = _mm512_sub_epi32(lanes.contexts, splat_i32(static_cast<int32_t>(first)));
  const I from = _mm512_sub_epi32(last, splat_i32(static_cast<int32_t>(window)));
  const auto seen = [&](int key) {
    const I k = splat_i32(key);
    return static_cast<__mmask16>(_mm512_cmplt_epi32_mask(k, last) &
                                  _mm512_cmpge_epi32_mask(k, from));
  };
  const F before = load(s.segment.tops + group * kLaneGroup);
  F tops[4] = {before, before, before, before};
  for (int key = 0; key < count; key += 4) {  // no lane sees the keys beyond
    ahead.ask();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      F x = load(scores + (key + i) * kLaneGroup);
      if (!ALL) x = _mm512_mask_blend_ps(seen(key + i), splat(kNever), x);
      tops[i] = max(tops[i], x);
    }
  }
  const F top = max(max(tops[0], tops[1]), max(tops[2], tops[3]));
  const __mmask16 had = _mm512_cmp_ps_mask(before, splat(kNever), _CMP_NEQ_OQ);
  const F keep = _mm512_maskz_mov_ps(had, exp2_coarse(sub(before, top)));
  store(s.keep, keep);
  store(s.segment.tops + group * kLaneGroup, top);

  F sums[4] = {mul(load(s.segment.sums + group * kLaneGroup), keep), zero(), zero(), zero()};
  for (int half = 0; half < 2; ++half) {
    I pairs[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const int key = half * 32 + 2 * i;
      pairs[i] = splat_i32(0);
      if (!ALL && key >= count) continue;
      I bits[2];
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        F w = exp2_coarse(sub(load(scores + (key + j) * kLaneGroup), top));
        if (!ALL) w = _mm512_maskz_mov_ps(seen(key + j), w);
        bits[j] = high_half(add_i32(float_to_bits(w), splat_i32(0x8000)));
        F& sum = sums[(2 * i + j) % 4];
        sum = add(sum, bits_to_float(bits[j]));
      }
      pairs[i] = _mm512_or_si512(shift_right16(bits[0]), bits[1]);
    }
    transpose(pairs);
    for (int q = 0; q < 16; ++q) _mm512_store_si512(s.weights + (half * 16 + q) * 32, pairs[q]);
  }
  store(s.segment.sums + group * kLaneGroup, add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// result[q] = result[q] * keep[q] + weights . values
inline void mix_tiles(const TileScratch& s, const Lanes& lanes, int group, int head_dim) {
  const int tiles = head_dim / 16;
  const uint16_t* second = s.values + tiles * 512;
  written(s.weights);
  _tile_loadd(4, s.weights, 64);
  _tile_loadd(5, s.weights + 512, 64);
  for (int t = 0; t < tiles; t += 2) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(6, s.values + t * 512, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, s.values + (t + 1) * 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, second + t * 512, 64);
    _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, second + (t + 1) * 512, 64);
    _tile_dpbf16ps(1, 5, 7);
    _tile_stored(0, s.mixed + t * 256, 64);
    _tile_stored(1, s.mixed + (t + 1) * 256, 64);
  }
  float* results = s.segment.results + int64_t{group} * kLaneGroup * head_dim;
  for (int lane = 0; lane < lanes.end - lanes.begin; ++lane) {
    const F keep = splat(s.keep[lane]);
    for (int t = 0; t < tiles; ++t) {
      float* result = results + (t * kLaneGroup + lane) * 16;
      store(result, fma(load(result), keep, load(s.mixed + (t * kLaneGroup + lane) * 16)));
    }
  }
}

// Adds a group's segment to its total, by the arithmetic of merge_part, so that it makes no
// difference who adds up a row's segments.
inline void merge_segment(const TileScratch& s, const Lanes& lanes, int group, int head_dim) {
  const int64_t at = int64_t{group} * kLaneGroup;
  const F from = mul(load(s.segment.tops + at), splat(0.693147181f)), into = load(s.total.tops + at);
  const __mmask16 some = _mm512_cmp_ps_mask(from, splat(kNever), _CMP_NEQ_OQ);
  const __mmask16 had = _mm512_cmp_ps_mask(into, splat(kNever), _CMP_NEQ_OQ);
  const F top = max(into, from);
  const F one = splat(1.0f);
  const F keep = _mm512_mask_blend_ps(some, one, _mm512_maskz_mov_ps(had, exp(sub(into, top))));
  const F take = _mm512_maskz_mov_ps(some, _mm512_mask_blend_ps(had, one, exp(sub(from, top))));
  const F sums = mul(load(s.total.sums + at), keep);
  store(s.total.tops + at, top);
  store(s.total.sums + at, add(sums, mul(load(s.segment.sums + at), take)));
  alignas(64) float keeps[kLaneGroup], takes[kLaneGroup];
  store(keeps, keep);
  store(takes, take);
  for (int lane = 0; lane < lanes.end - lanes.begin; ++lane) {
    for (int t = 0; t < head_dim / 16; ++t) {
      const int64_t i = at * head_dim + (t * kLaneGroup + lane) * 16;
      const F old = mul(load(s.total.results + i), splat(keeps[lane]));
      store(s.total.results + i, fma(load(s.segment.results + i), splat(takes[lane]), old));
    }
  }
}

inline void attend_tiles(const AttentionArgs* args, const AttentionTask* task) {
  const ModelConfig& c = *args->config;
  const int head_dim = c.head_dim, size = 2 + head_dim;
  const TileScratch s(args->scratch, head_dim);
  const Queries queries = queries_of(*args, *task);
  const int heads = task->kv_end - task->kv_begin;
  const int each = (queries.per_head + kLaneGroup - 1) / kLaneGroup;  // groups of a KV head
  const int groups = heads * each;
  Lanes lanes[kQueryBlock];
  for (int g = 0; g < groups; ++g) {
    const int begin = g / each * queries.per_head + g % each * kLaneGroup;
    const int end = (g / each + 1) * queries.per_head;
    lanes[g] = lanes_of(queries, begin, end < begin + kLaneGroup ? end : begin + kLaneGroup);
    pack_queries(queries, lanes[g], head_dim, s.queries + int64_t{g} * head_dim * kLaneGroup);
  }
  const auto clear = [&](const Running& running) {
    for (int g = 0; g < groups; ++g) running.clear(g, lanes[g].end - lanes[g].begin, head_dim);
  };
  clear(s.total);
  const int64_t longest = queries.context[queries.count - 1];
  const int64_t window = c.window > 0 ? c.window : longest;
  const int64_t oldest = queries.context[0] - window;
  const int64_t end = int64_t{task->segment_end} * kSegment;
  const bool in_place = args->batch->page_size % 16 == 0;
  const int64_t token = int64_t{c.kv_heads} * head_dim;
  for (int64_t from = int64_t{task->segment_begin} * kSegment; from < end && from < longest;
       from += kSegment) {
    clear(s.segment);
    auto next = locate<kStep>(*args, *task, from, longest);
    for (int64_t first = from; first < from + kSegment && first < longest; first += kStep) {
      const auto place = next;
      next = locate<kStep>(*args, *task, first + kStep, longest);
      if (first + kStep <= oldest) continue;
      for (int h = 0; h < heads; ++h) {
        const int64_t shift = int64_t{h} * head_dim;
        Ahead ahead(*args, next, h, heads, head_dim);
        const uint16_t* keys[kStep / 16];
        for (int t = 0; t < kStep / 16; ++t) {
          keys[t] = args->keys + place.offsets[t * 16] + shift;
          if (in_place) continue;
          keys[t] = s.keys + t * 16 * head_dim;
          for (int i = t * 16; i < t * 16 + 16 && i < place.count; ++i) {
            std::memcpy(s.keys + i * head_dim, args->keys + place.offsets[i] + shift,
                        head_dim * sizeof *s.keys);
          }
        }
        pack_values(args->values + shift, place, head_dim, ahead, s.values);
        // One group ahead: what the unit stores takes a while to be there.
        const auto score = [&](int g) {
          score_tiles(keys, (in_place ? token : head_dim) * 2, place.count,
                      s.queries + int64_t{g} * head_dim * kLaneGroup, head_dim, s.scores[g % 2]);
        };
        int g = h * each;
        while (lanes[g].longest <= first) ++g;  // rows that end before this step
        score(g);
        for (; g < (h + 1) * each; ++g) {
          if (g + 1 < (h + 1) * each) score(g + 1);
          const bool all =
              lanes[g].shortest >= first + kStep && lanes[g].longest - window <= first;
          const auto soften = all ? soften_lanes<true> : soften_lanes<false>;
          soften(s, lanes[g], g, first, window, place.count, ahead);
          mix_tiles(s, lanes[g], g, head_dim);
        }
        ahead.rest();
      }
    }
    for (int g = 0; g < groups; ++g) merge_segment(s, lanes[g], g, head_dim);
  }
  for (int g = 0; g < groups; ++g) {
    for (int q = lanes[g].begin; q < lanes[g].end; ++q) {
      const int64_t at = int64_t{g} * kLaneGroup, lane = q - lanes[g].begin;
      float* part = args->parts + queries.part[q] * size;
      part[0] = s.total.tops[at + lane];
      part[1] = s.total.sums[at + lane];
      unmix(s.total.results + at * head_dim + lane * 16, head_dim, part + 2);
    }
  }
}

}  // namespace PHLOEM_ISA
