// Products with 4-bit weights on the matrix unit (AMX): the bits of bfloat16 weights at a third of
// their bytes. A block is unpacked to the bfloat16 numbers that its weights round to, beside the
// tile products of the block before last, and used at once for up to 64 rows.
//
// Weights are the first operand, so that a row of a tile is one output, whose 16 possible weights
// in a block fit half a register: unpacking is a look-up. Results are [16 outputs][16 rows].
#pragma once

#include "gemm.h"
#include "tiles.h"

namespace PHLOEM_ISA {

constexpr int kUnpackAhead = 2;  // blocks between unpacking and use, so that stores have landed
constexpr int kRing = 4;         // unpacked blocks at a time
constexpr int kTileWords = kTile * kBlock;

// A block as [16 outputs][32 inputs].
inline void unpack_q4(const uint8_t* block, uint16_t* out) {
  const auto* halves = reinterpret_cast<const uint16_t*>(block);
  alignas(64) float scales[kGroup], minimums[kGroup];
  store(scales, load_f16(halves));
  store(minimums, load_f16(halves + kGroup));
  const F steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const I four_bits = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
#pragma GCC unroll 8
  for (int n = 0; n < kGroup; n += 2) {
    // The possible weights of two outputs, and which of them is meant.
    const F a = fma(splat(scales[n]), steps, splat(minimums[n]));
    const F b = fma(splat(scales[n + 1]), steps, splat(minimums[n + 1]));
    const I table = reinterpret_cast<I>(_mm512_cvtne2ps_pbh(b, a));
    const I q = load_bytes(block + 64 + n / 4 * 64);
    const I of_a = _mm512_and_si512(_mm512_srli_epi16(q, n % 4 * 4), four_bits);
    const I of_b = _mm512_ternarylogic_epi32(_mm512_srli_epi16(q, n % 4 * 4 + 4), four_bits,
                                             second, 0xea);  // (q and 15) or 16
    _mm512_store_si512(out + n * kBlock, _mm512_permutexvar_epi16(of_a, table));
    _mm512_store_si512(out + (n + 1) * kBlock, _mm512_permutexvar_epi16(of_b, table));
  }
}

// sums[t] += weights x rows of tile t; tiles 0-3 are the sums, 4 the weights, 6-7 rows.
template <int TILES>
void add_products(const uint16_t* weights, const uint16_t* rows, int64_t tile_words) {
  _tile_loadd(4, weights, 64);
  _tile_loadd(6, rows, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (TILES > 1) {
    _tile_loadd(7, rows + tile_words, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (TILES > 2) {
    _tile_loadd(6, rows + 2 * tile_words, 64);
    _tile_dpbf16ps(2, 4, 6);
  }
  if constexpr (TILES > 3) {
    _tile_loadd(7, rows + 3 * tile_words, 64);
    _tile_dpbf16ps(3, 4, 7);
  }
}

// Writes [16 outputs][16 rows] for the rows from `row` on.
inline void write_columns(const GemmTask& task, int64_t row, int64_t group, const float* sums) {
  const int64_t left = task.row_end - row;
  const int count = left < kTile ? static_cast<int>(left) : kTile;
  const GroupOutput out(task, row, count, group * kGroup);
  if (count == 1) {
    const I at = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208,
                                   224, 240);
    return out.write(0, _mm512_i32gather_ps(at, sums, 4));
  }
  I x[kTile];
  for (int n = 0; n < kGroup; ++n) x[n] = load_bytes(sums + n * kTile);
  transpose(x);
  for (int r = 0; r < count; ++r) out.write(r, bits_to_float(x[r]));
}

// The rows [row, row + 16 TILES) of the task, for one group of outputs.
template <int TILES>
void group_q4(const GemmTask& task, int64_t row, int64_t group) {
  const int64_t blocks = task.matrix->inputs / kBlock, tile_words = blocks * kTileWords;
  const uint8_t* weights = task.matrix->data + group * blocks * block_bytes(kQ4Tiles);
  const uint16_t* rows = task.rows->words + row / kTile * tile_words;
  alignas(64) uint16_t ring[kRing][kTileWords];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t b = 0; b < blocks + kUnpackAhead; ++b) {
    if (b < blocks) {
      const uint8_t* block = weights + b * block_bytes(kQ4Tiles);
      prefetch<block_bytes(kQ4Tiles), 16 * TILES>(block);
      unpack_q4(block, ring[b % kRing]);
      written(ring);
    }
    if (b >= kUnpackAhead) {
      const int64_t done = b - kUnpackAhead;
      add_products<TILES>(ring[done % kRing], rows + done * kTileWords, tile_words);
    }
  }
  alignas(64) float sums[TILES][kTile * kGroup];
  _tile_stored(0, sums[0], 64);
  if constexpr (TILES > 1) _tile_stored(1, sums[1], 64);
  if constexpr (TILES > 2) _tile_stored(2, sums[2], 64);
  if constexpr (TILES > 3) _tile_stored(3, sums[3], 64);
  for (int t = 0; t < TILES; ++t) write_columns(task, row + t * kTile, group, sums[t]);
}

inline void multiply_q4(const GemmTask& task) {
  for (int64_t group = task.group_begin; group < task.group_end; ++group) {
    for (int64_t row = task.row_begin; row < task.row_end; row += 4 * kTile) {
      switch ((task.row_end - row + kTile - 1) / kTile) {
        case 1: group_q4<1>(task, row, group); break;
        case 2: group_q4<2>(task, row, group); break;
        case 3: group_q4<3>(task, row, group); break;
        default: group_q4<4>(task, row, group);
      }
    }
  }
}

}  // namespace PHLOEM_ISA
