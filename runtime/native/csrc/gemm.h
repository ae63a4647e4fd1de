// What the matrix products of packed rows and packed weights share: how a product is cut into
// pieces, where results go, and looking ahead in memory. The pieces are in gemm_int8.h and
// gemm_bf16.h.
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

// Where one piece writes: rows [row, row + count) and the outputs from n on.
struct GroupOutput {
  float* out;  // of output n
  int64_t stride;
  const float* bias;  // of output n, or null
  int lanes;          // outputs that exist, may be <= 0 in the last group
  int rows;
  bool accumulate;

  GroupOutput(const GemmTask& task, int64_t row, int count, int64_t n)
      : out(task.out + (row - task.row_begin) * task.stride + n - task.group_begin * kGroup),
        stride(task.stride),
        bias(task.matrix->bias != nullptr ? task.matrix->bias + n : nullptr),
        lanes(static_cast<int>(task.matrix->outputs - n)),
        rows(count),
        accumulate(task.accumulate) {}

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

// Asks for the weights that come a few thousand cycles later; the hardware's own streams stop
// at page borders and start late. With few rows the arithmetic of a block is short, so look far.
template <int BYTES, int ROWS>
inline void prefetch(const uint8_t* weights) {
  constexpr int ahead = ROWS >= 8 ? 2048 : 8192;
#pragma GCC unroll 16
  for (int line = 0; line < BYTES; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(weights) + ahead + line, _MM_HINT_T0);
  }
}

// Does a task with piece(count), for the least of the compiled row counts that holds the rows at
// hand: PIECE<ROWS>::run(weights, blocks, rows, tile, place, part, out). The rows beyond are
// computed from whatever lies in the tile, and not written.
template <template <int> class PIECE, int ROWS, int... MORE, class... Args>
void piece_of(int count, const Args&... args) {
  if constexpr (sizeof...(MORE) > 0) {
    if (count > ROWS) return piece_of<PIECE, MORE...>(count, args...);
  }
  PIECE<ROWS>::run(args...);
}

template <template <int> class PIECE>
void gemm_by(const GemmTask& task) {
  constexpr int most = kLanes == 16 ? 16 : 4;  // rows whose sums the registers hold
  const Matrix& m = *task.matrix;
  const int64_t blocks = m.inputs / kBlock;
  for (int64_t group = task.group_begin; group < task.group_end; ++group) {
    const uint8_t* weights = m.data + group * blocks * block_bytes(m.format);
    for (int64_t row = task.row_begin; row < task.row_end; row += most) {
      const int count = static_cast<int>(task.row_end - row < most ? task.row_end - row : most);
      const int64_t tile = row / kTile;
      const int place = static_cast<int>(row % kTile);
      for (int part = 0; part < kParts; ++part) {
        const GroupOutput out(task, row, count, group * kGroup + part * kLanes);
        if constexpr (kLanes == 16) {
          piece_of<PIECE, 1, 2, 3, 4, 6, 8, 12, 16>(count, weights, blocks, *task.rows, tile,
                                                    place, part, out);
        } else {
          piece_of<PIECE, 1, 2, 3, 4>(count, weights, blocks, *task.rows, tile, place, part, out);
        }
      }
    }
  }
}

}  // namespace PHLOEM_ISA
