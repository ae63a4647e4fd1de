// What all uses of the matrix unit (AMX) share: the shapes of tiles, and order in memory.
#pragma once

#include "simd.h"

namespace PHLOEM_ISA {

// GCC's tile loads do not tell it that they read memory: what they read has to be in memory first.
inline void written(const void* p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// The tile registers: 0-3 sums, 4-5 activations, 6-7 weights; 16 rows of 64 bytes if not said
// otherwise.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};

  TileConfig() {
    for (int i = 0; i < 8; ++i) shape(i, 16, 64);
  }

  void shape(int tile, uint8_t count, uint16_t bytes) {
    rows[tile] = count;
    bytes_per_row[tile] = bytes;
  }

  void load() const {
    written(this);
    _tile_loadconfig(this);
  }
};

}  // namespace PHLOEM_ISA
