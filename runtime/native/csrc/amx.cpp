// What Intel's matrix unit (AMX) does: attention (attention_tiles.h), products of many rows with
// 4-bit and 8-bit weights (gemm_int8_tiles.h), and products with bfloat16 weights.
//
// The last go in tiles of 16 rows x 32 inputs times 32 inputs x 16 outputs. The packed layouts were
// chosen so that both are 1,024 bytes in a row. Used for every number of rows, so that a row's
// result does not depend on its batch; with one row the unit still is faster than memory.
#include <sys/syscall.h>
#include <unistd.h>

#include "attention_tiles.h"
#include "gemm_int8_tiles.h"

namespace PHLOEM_ISA {

bool request_amx();
void gemm_bf16_tiles(const phloem::GemmTask* task);
void gemm_q4_tiles(const phloem::GemmTask* task);
void gemm_q8_tiles(const phloem::GemmTask* task);
void attend_some(const phloem::AttentionArgs* args, const phloem::AttentionTask* task);

namespace {

constexpr int kTileBytes = 1024;

void write_tile(const GemmTask& task, int64_t row, int64_t group, const float* sums) {
  const int64_t left = task.row_end - row;
  const int count = left < kTile ? static_cast<int>(left) : kTile;
  const GroupOutput out(task, row, count, group * kGroup);
  for (int r = 0; r < count; ++r) out.write(r, load(sums + r * kGroup));
}

// Row tiles [tile, tile + 2) x groups [group, group + 2). Rows pass the nearest cache by (the hint of
// `stream`): the weights stay there for the next rows.
void two_by_two(const GemmTask& task, int64_t tile, int64_t group, int64_t blocks) {
  const auto* a0 = reinterpret_cast<const uint8_t*>(task.rows->words) + tile * blocks * kTileBytes;
  const auto* a1 = a0 + blocks * kTileBytes;
  const uint8_t* w0 = task.matrix->data + group * blocks * kTileBytes;
  const uint8_t* w1 = w0 + blocks * kTileBytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t at = 0; at < blocks * kTileBytes; at += kTileBytes) {
    _tile_stream_loadd(4, a0 + at, 64);
    _tile_loadd(6, w0 + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + at, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, a1 + at, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[4][kTile * kGroup];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  for (int i = 0; i < 4; ++i) write_tile(task, (tile + i / 2) * kTile, group + i % 2, sums[i]);
}

void one_by_one(const GemmTask& task, int64_t tile, int64_t group, int64_t blocks) {
  const auto* a = reinterpret_cast<const uint8_t*>(task.rows->words) + tile * blocks * kTileBytes;
  const uint8_t* w = task.matrix->data + group * blocks * kTileBytes;
  _tile_zero(0);
  for (int64_t at = 0; at < blocks * kTileBytes; at += kTileBytes) {
    prefetch<kTileBytes, 1>(w + at);
    _tile_loadd(4, a + at, 64);
    _tile_loadd(6, w + at, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  alignas(64) float sums[kTile * kGroup];
  _tile_stored(0, sums, 64);
  write_tile(task, tile * kTile, group, sums);
}

}  // namespace

// Linux gives the matrix unit to a process that asks for it (arch_prctl, XFEATURE_XTILEDATA).
bool request_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void gemm_bf16_tiles(const phloem::GemmTask* task) {
  const TileConfig config;
  config.load();
  const int64_t blocks = task->matrix->inputs / kBlock;
  const int64_t first = task->row_begin / kTile, end = (task->row_end + kTile - 1) / kTile;
  int64_t group = task->group_begin;
  // Weights are read once for two row tiles, or stream past one.
  for (; end - first > 1 && group + 1 < task->group_end; group += 2) {
    int64_t tile = first;
    for (; tile + 1 < end; tile += 2) two_by_two(*task, tile, group, blocks);
    if (tile < end) {
      one_by_one(*task, tile, group, blocks);
      one_by_one(*task, tile, group + 1, blocks);
    }
  }
  for (; group < task->group_end; ++group) {
    for (int64_t tile = first; tile < end; ++tile) one_by_one(*task, tile, group, blocks);
  }
  _tile_release();
}

// A block has 32 inputs: half a tile of bytes.
template <int FORMAT>
void int8_with_tiles(const GemmTask& task, int64_t least) {
  TileConfig config;
  config.shape(4, 16, kBlock);
  config.shape(6, kBlock / 4, 64);
  config.load();
  gemm_int8_tiles<FORMAT>(task, least);
  _tile_release();
}

// From where on the unit wins was measured.
void gemm_q4_tiles(const phloem::GemmTask* task) { int8_with_tiles<kQ4>(*task, 16); }
void gemm_q8_tiles(const phloem::GemmTask* task) { int8_with_tiles<kQ8>(*task, 32); }

// Heads of other sizes go the way of AVX-512, for all rows of the model alike.
void attend_some(const phloem::AttentionArgs* args, const phloem::AttentionTask* task) {
  if (args->config->head_dim % 32 != 0) return attend(args, task);
  const TileConfig config;
  config.load();
  attend_tiles(args, task);
  _tile_release();
}

}  // namespace PHLOEM_ISA
