// Matrix products of packed activation rows and packed weights.
//
// A weight block is unpacked once and then used by up to 16 rows whose sums stay in registers.
// Each output is one chain over the inputs in order, whatever the number of rows, so a row's
// result does not depend on its batch: decoding alone, in a batch, in a chunk or after a draft
// gives the same bits.
#pragma once

#include "model.h"
#include "simd.h"

namespace PHLOEM_ISA {

using namespace phloem;

// A group is done kLanes outputs at a time.
constexpr int kParts = kGroup / kLanes;

struct GroupOutput {
  float* out;         // first row of the tile piece, first output of the group part
  int64_t stride;
  const float* bias;  // of the first output, or null
  int lanes;          // outputs that exist, may be <= 0 in the last group
  int rows;           // rows that exist
  bool accumulate;

  void write(int row, F value) const {
    if (row >= rows) return;
    float* to = out + row * stride;
    if (lanes >= kLanes) {
      if (bias != nullptr) value = add(value, load(bias));
      if (accumulate) value = add(value, load(to));
      store(to, value);
      return;
    }
    float buffer[kLanes];
    store(buffer, value);
    for (int i = 0; i < lanes; ++i) {
      const float x = buffer[i] + (bias != nullptr ? bias[i] : 0.0f);
      to[i] = accumulate ? x + to[i] : x;
    }
  }
};

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

template <int FORMAT, int ROWS>
void piece_bf16(const uint8_t* weights, int64_t blocks, const PackedRows& rows, int64_t tile,
                int place, int part, const GroupOutput& out) {
  F acc[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) acc[r] = zero();
  int64_t at = tile * blocks * kTile + place;
  for (int64_t b = 0; b < blocks; ++b, at += kTile, weights += block_bytes(kBf16)) {
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

template <int FORMAT, int ROWS>
void piece(const uint8_t* weights, int64_t blocks, const PackedRows& rows, int64_t tile,
           int place, int part, const GroupOutput& out) {
  if constexpr (FORMAT == kBf16) {
    piece_bf16<FORMAT, ROWS>(weights, blocks, rows, tile, place, part, out);
  } else {
    piece_int8<FORMAT, ROWS>(weights, blocks, rows, tile, place, part, out);
  }
}

// Calls piece with the least of the compiled row counts that holds `count` rows. The rows beyond
// are computed from whatever lies in the tile, and not written.
template <int FORMAT, int ROWS, int... MORE>
void piece_of(int count, const uint8_t* weights, int64_t blocks, const PackedRows& rows,
              int64_t tile, int place, int part, const GroupOutput& out) {
  if constexpr (sizeof...(MORE) > 0) {
    if (count > ROWS) {
      return piece_of<FORMAT, MORE...>(count, weights, blocks, rows, tile, place, part, out);
    }
  }
  piece<FORMAT, ROWS>(weights, blocks, rows, tile, place, part, out);
}

template <int FORMAT>
void gemm_of(const GemmTask& task) {
  constexpr int most = kLanes == 16 ? 16 : 4;  // rows whose sums the registers hold
  const Matrix& m = *task.matrix;
  const int64_t blocks = m.inputs / kBlock;
  for (int64_t group = task.group_begin; group < task.group_end; ++group) {
    const uint8_t* weights = m.data + group * blocks * block_bytes(FORMAT);
    for (int64_t row = task.row_begin; row < task.row_end; row += most) {
      const int count = static_cast<int>(task.row_end - row < most ? task.row_end - row : most);
      for (int part = 0; part < kParts; ++part) {
        const int64_t n = group * kGroup + part * kLanes;
        const GroupOutput out{task.out + row * task.stride + n, task.stride,
                              m.bias != nullptr ? m.bias + n : nullptr,
                              static_cast<int>(m.outputs - n), count, task.accumulate};
        const int64_t tile = row / kTile;
        const int place = static_cast<int>(row % kTile);
        if constexpr (kLanes == 16) {
          piece_of<FORMAT, 1, 2, 3, 4, 6, 8, 12, 16>(count, weights, blocks, *task.rows, tile,
                                                     place, part, out);
        } else {
          piece_of<FORMAT, 1, 2, 3, 4>(count, weights, blocks, *task.rows, tile, place, part, out);
        }
      }
    }
  }
}

inline void gemm(const GemmTask* task) {
  switch (task->matrix->format) {
    case kQ4: return gemm_of<kQ4>(*task);
    case kQ8: return gemm_of<kQ8>(*task);
    case kBf16: return gemm_of<kBf16>(*task);
    default: return;
  }
}

}  // namespace PHLOEM_ISA
