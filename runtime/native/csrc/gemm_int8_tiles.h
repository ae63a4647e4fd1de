// Products with 4-bit and 8-bit weights on the matrix unit (AMX), for tiles of 16 rows. Weights are
// unpacked to bytes once for all tiles of a task; a tile product gives the exact integer sums of
// one block of 32 inputs for 16 rows x 16 outputs; and these are scaled and added in the very
// order of gemm_int8.h. So both give the same bits.
#pragma once

#include "gemm_int8.h"
#include "tiles.h"

namespace PHLOEM_ISA {

// Blocks unpacked at a time: 32 KB, which stay in the first cache.
constexpr int kUnpacked = 64;
constexpr int kMostTiles = 4;

// The weights of a block as signed bytes [8 quads][16 outputs][4].
template <int FORMAT>
void unpack(const uint8_t* weights, uint8_t* out) {
  prefetch<block_bytes(FORMAT), 16>(weights);
  if constexpr (FORMAT == kQ4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const I both = load_bytes(weights + 64 + i * 64);
      _mm512_store_si512(out + i * 64, low_nibbles(both));
      _mm512_store_si512(out + 256 + i * 64, high_nibbles(both));
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const I bytes = load_bytes(weights + 64 + i * 64);
      _mm512_store_si512(out + i * 64, _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)));
    }
  }
}

// totals[r][n] += the blocks [0, blocks) of a tile of rows, whose first block is `at`. Uses the
// tiles 0 (sums), 4 (rows, 32 bytes each) and 6 (weights, 8 rows).
template <int FORMAT>
void add_blocks(const uint8_t* weights, const uint8_t* unpacked, int64_t blocks,
                const PackedRows& rows, int64_t at, float* totals) {
  F acc[kTile];
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) acc[r] = load(totals + r * kGroup);
  alignas(64) int32_t dots[2][kTile * kGroup];
  for (int64_t b = 0; b < blocks; ++b, at += kTile, weights += block_bytes(FORMAT)) {
    int32_t* dot = dots[b % 2];
    _tile_zero(0);
    _tile_loadd(4, rows.bytes + at * kBlock, kBlock);
    _tile_loadd(6, unpacked + b * kGroup * kBlock, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, dot, 64);
    const auto* halves = reinterpret_cast<const uint16_t*>(weights);
    const F scale =
        FORMAT == kQ4 ? load_f16(halves) : load(reinterpret_cast<const float*>(weights));
    const F minimum = FORMAT == kQ4 ? load_f16(halves + 16) : zero();
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) {
      const F sum = to_float(load_bytes(dot + r * kGroup));
      acc[r] = fma(sum, mul(scale, splat(rows.scales[at + r])), acc[r]);
      if constexpr (FORMAT == kQ4) acc[r] = fma(minimum, splat(rows.sums[at + r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) store(totals + r * kGroup, acc[r]);
}

// Rows [begin, end) of the task, whole tiles and at most kMostTiles, for one group of outputs.
template <int FORMAT>
void group_tiles(const GemmTask& task, int64_t group, int64_t begin, int64_t end) {
  const Matrix& m = *task.matrix;
  const int64_t blocks = m.inputs / kBlock;
  const uint8_t* weights = m.data + group * blocks * block_bytes(FORMAT);
  alignas(64) uint8_t unpacked[kUnpacked * kGroup * kBlock];
  alignas(64) float totals[kMostTiles][kTile * kGroup] = {};
  for (int64_t b = 0; b < blocks; b += kUnpacked, weights += kUnpacked * block_bytes(FORMAT)) {
    const int64_t some = blocks - b < kUnpacked ? blocks - b : kUnpacked;
    for (int64_t i = 0; i < some; ++i) {
      unpack<FORMAT>(weights + i * block_bytes(FORMAT), unpacked + i * kGroup * kBlock);
    }
    written(unpacked);
    for (int64_t row = begin; row < end; row += kTile) {
      add_blocks<FORMAT>(weights, unpacked, some, *task.rows, (row / kTile * blocks + b) * kTile,
                         totals[(row - begin) / kTile]);
    }
  }
  for (int64_t row = begin; row < end; row += kTile) {
    const GroupOutput out(task, row, kTile, group * kGroup);
    const float* total = totals[(row - begin) / kTile];
    for (int r = 0; r < kTile; ++r) out.write(r, load(total + r * kGroup));
  }
}

// From `least` rows on, whole tiles go to the matrix unit; the rest does not.
template <int FORMAT>
void gemm_int8_tiles(const GemmTask& task, int64_t least) {
  GemmTask rest = task;
  if (task.row_end - task.row_begin >= least) {
    rest.row_begin = task.row_end - (task.row_end - task.row_begin) % kTile;
    rest.out += (rest.row_begin - task.row_begin) * task.stride;
    for (int64_t group = task.group_begin; group < task.group_end; ++group) {
      for (int64_t row = task.row_begin; row < rest.row_begin; row += kMostTiles * kTile) {
        const int64_t end = row + kMostTiles * kTile;
        group_tiles<FORMAT>(task, group, row, end < rest.row_begin ? end : rest.row_begin);
      }
    }
  }
  if constexpr (FORMAT == kQ4) {
    gemm_q4(&rest);
  } else {
    gemm_q8(&rest);
  }
}

}  // namespace PHLOEM_ISA
