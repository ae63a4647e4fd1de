// Products with bfloat16 weights, summed in float32.
#pragma once

#include "gemm.h"

namespace PHLOEM_ISA {

// Rows [place, place + ROWS) of a tile times lanes [part * kLanes, + kLanes) of a group.
template <int ROWS>
void piece_bf16(const uint8_t* weights, int64_t blocks, const PackedRows& rows, int64_t tile,
                int place, int part, const GroupOutput& out) {
  F acc[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) acc[r] = zero();
  int64_t at = tile * blocks * kTile + place;
  for (int64_t b = 0; b < blocks; ++b, at += kTile, weights += block_bytes(kBf16)) {
    prefetch<block_bytes(kBf16), ROWS>(weights);
    const uint16_t* a = rows.words + at * kBlock;
    for (int pair = 0; pair < kBlock / 2; ++pair) {
      const I w = load_bytes(weights + pair * 64 + part * kLanes * 4);
#if defined(__AVX512BF16__)
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const I x = splat_i32(load_i32(a + r * kBlock + 2 * pair));
        acc[r] = _mm512_dpbf16_ps(acc[r], reinterpret_cast<__m512bh>(w),
                                  reinterpret_cast<__m512bh>(x));
      }
#else
      const F even = bits_to_float(shift_left16(w)), odd = bits_to_float(high_half(w));
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const I x = splat_i32(load_i32(a + r * kBlock + 2 * pair));
        acc[r] = fma(even, bits_to_float(shift_left16(x)), acc[r]);
        acc[r] = fma(odd, bits_to_float(high_half(x)), acc[r]);
      }
#endif
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) out.write(r, acc[r]);
}

template <int ROWS>
struct PieceBf16 {
  template <class... Args>
  static void run(const Args&... args) {
    piece_bf16<ROWS>(args...);
  }
};

inline void gemm_bf16(const GemmTask* task) { gemm_by<PieceBf16>(*task); }

}  // namespace PHLOEM_ISA
