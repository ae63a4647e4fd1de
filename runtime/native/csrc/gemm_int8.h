// Products with 4-bit and 8-bit weights: the sums of a block of 32 are exact integers, and each
// block's sum is scaled and added in float32.
#pragma once

#include "gemm.h"

namespace PHLOEM_ISA {

// Rows [place, place + ROWS) of a tile times lanes [part * kLanes, + kLanes) of a group.
template <int FORMAT, int ROWS>
void piece_int8(const uint8_t* weights, int64_t blocks, const PackedRows& rows, int64_t tile,
                int place, int part, const GroupOutput& out) {
  F acc[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) acc[r] = zero();
  int64_t at = tile * blocks * kTile + place;
  const int lane = part * kLanes;
  for (int64_t b = 0; b < blocks; ++b, at += kTile, weights += block_bytes(FORMAT)) {
    prefetch<block_bytes(FORMAT), ROWS>(weights);
    I w[8];
    if constexpr (FORMAT == kQ4) {
      for (int i = 0; i < 4; ++i) {
        const I both = load_bytes(weights + 64 + i * 64 + lane * 4);
        w[i] = low_nibbles(both);
        w[i + 4] = high_nibbles(both);
      }
    } else {
      for (int i = 0; i < 8; ++i) w[i] = load_bytes(weights + 64 + i * 64 + lane * 4);
    }
    const auto* halves = reinterpret_cast<const uint16_t*>(weights);
    const F scale = FORMAT == kQ4 ? load_f16(halves + lane)
                                  : load(reinterpret_cast<const float*>(weights) + lane);
    const F minimum = FORMAT == kQ4 ? load_f16(halves + 16 + lane) : zero();
    const int8_t* a = rows.bytes + at * kBlock;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const I dot = FORMAT == kQ4 ? dot_nibbles(w, a + r * kBlock)
                                  : dot_bytes(w, a + r * kBlock, rows.offsets[at + r]);
      acc[r] = fma(to_float(dot), mul(scale, splat(rows.scales[at + r])), acc[r]);
      if constexpr (FORMAT == kQ4) acc[r] = fma(minimum, splat(rows.sums[at + r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) out.write(r, acc[r]);
}

template <int ROWS>
struct PieceQ4 {
  template <class... Args>
  static void run(const Args&... args) {
    piece_int8<kQ4, ROWS>(args...);
  }
};

template <int ROWS>
struct PieceQ8 {
  template <class... Args>
  static void run(const Args&... args) {
    piece_int8<kQ8, ROWS>(args...);
  }
};

inline void gemm_q4(const GemmTask* task) { gemm_by<PieceQ4>(*task); }
inline void gemm_q8(const GemmTask* task) { gemm_by<PieceQ8>(*task); }

}  // namespace PHLOEM_ISA
