// Work on one activation row: norms, packing for the matrix kernels, rotation, gates.
#pragma once

#include <cmath>
#include <limits>

#include "model.h"
#include "simd.h"

namespace PHLOEM_ISA {

using namespace phloem;

// The layouts are those of pack.cpp.
inline void read_row(const Matrix* matrix, int64_t row, float* out) {
  const int64_t blocks = matrix->inputs / kBlock, size = block_bytes(matrix->format);
  const int64_t lane = row % kGroup;
  const uint8_t* block = matrix->data + row / kGroup * blocks * size;
  for (int64_t b = 0; b < blocks; ++b, block += size, out += kBlock) {
    const auto* halves = reinterpret_cast<const uint16_t*>(block);
    for (int k = 0; k < kBlock; ++k) {
      if (matrix->format == kBf16) {
        const uint32_t bits = uint32_t{halves[k / 2 * 32 + lane * 2 + k % 2]} << 16;
        std::memcpy(out + k, &bits, sizeof bits);
      } else if (matrix->format == kQ4) {
        const uint8_t both = block[64 + k / 4 % 4 * 64 + lane * 4 + k % 4];
        out[k] = _cvtsh_ss(halves[lane]) * static_cast<float>(k < 16 ? both & 15 : both >> 4) +
                 _cvtsh_ss(halves[16 + lane]);
      } else {
        out[k] = reinterpret_cast<const float*>(block)[lane] *
                 (block[64 + k / 4 * 64 + lane * 4 + k % 4] - 128.0f);
      }
    }
  }
}

inline void rms_norm(const float* x, const float* weight, float epsilon, int size, float* out) {
  F squares = zero();
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (; i < size; ++i) total += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(total / static_cast<float>(size) + epsilon);
  for (i = 0; i + kLanes <= size; i += kLanes) {
    store(out + i, mul(mul(load(x + i), splat(inverse)), load(weight + i)));
  }
  for (; i < size; ++i) out[i] = x[i] * inverse * weight[i];
}

// Symmetric 8-bit quantisation in blocks of 32, as llama.cpp's Q8_1 has it, but with float32
// scales: x is about scale * q with |q| <= 127.
inline void pack_bytes(const float* x, int begin, int count, int size, int64_t row,
                       const PackedRows& out) {
  const int64_t blocks = size / kBlock, tile = row / kTile, place = row % kTile;
  for (int64_t b = begin / kBlock; b < (begin + count) / kBlock; ++b, x += kBlock) {
    F top = zero();
    for (int i = 0; i < kBlock; i += kLanes) top = max(top, abs(load(x + i)));
    const float scale = max_of(top) / 127.0f;
    const F inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
    const int64_t at = (tile * blocks + b) * kTile + place;
    I total = splat_i32(0);
    for (int i = 0; i < kBlock; i += kLanes) {
      const I q = to_int(mul(load(x + i), inverse));
      total = add_i32(total, q);
      store_i8(out.bytes + at * kBlock + i, q);
    }
    const int32_t bytes = sum_i32(total);
    out.scales[at] = scale;
    out.sums[at] = scale * static_cast<float>(bytes);
    out.offsets[at] = -128 * bytes;
  }
}

inline void pack_words(const float* x, int begin, int count, int size, int64_t row,
                       const PackedRows& out) {
  const int64_t blocks = size / kBlock, tile = row / kTile, place = row % kTile;
  for (int64_t b = begin / kBlock; b < (begin + count) / kBlock; ++b, x += kBlock) {
    uint16_t* to = out.words + ((tile * blocks + b) * kTile + place) * kBlock;
    for (int i = 0; i < kBlock; i += kLanes) store_u16(to + i, to_bf16(load(x + i)));
  }
}

inline void pack_row(const float* x, int begin, int count, int size, int format, int64_t row,
                     const PackedRows* out) {
  if (format == kBf16) {
    pack_words(x, begin, count, size, row, *out);
  } else {
    pack_bytes(x, begin, count, size, row, *out);
  }
}

inline void silu_mul(const float* gate, const float* up, int size, float* out) {
  // size is a multiple of 32: the next matrix packs it in blocks.
  for (int i = 0; i < size; i += kLanes) {
    const F g = load(gate + i);
    // For g below -87 the true value is under 1e-36; exp's upper limit is kept by the minimum.
    const F e = exp(max(sub(zero(), g), splat(-87.0f)));
    store(out + i, mul(div(g, add(splat(1.0f), e)), load(up + i)));
  }
}

inline void rotate(float* x, const float* cos, const float* sin, int rotary, int size,
                   float scale) {
  const int half = rotary / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = (a * cos[i] - b * sin[i]) * scale;
    x[i + half] = (b * cos[i] + a * sin[i]) * scale;
  }
  for (int i = rotary; i < size; ++i) x[i] *= scale;
}

inline void store_bf16(const float* x, int size, uint16_t* out) {
  for (int i = 0; i < size; i += kLanes) store_u16(out + i, to_bf16(load(x + i)));
}

inline int first_largest(const float* x, int size) {
  constexpr int step = 4 * kLanes;
  float top = -std::numeric_limits<float>::infinity();
  int at = 0, i = 0;
  F products = zero();  // by zero: NaN after a NaN or an infinity
  for (; i + step <= size; i += step) {
    const F a = load(x + i), b = load(x + i + kLanes);
    const F c = load(x + i + 2 * kLanes), d = load(x + i + 3 * kLanes);
    products = fma(add(add(a, b), add(c, d)), zero(), products);
    const float largest = max_of(max(max(a, b), max(c, d)));
    if (largest > top) {
      top = largest;
      at = i;
    }
  }
  bool odd = std::isnan(sum(products));
  for (; i < size; ++i) {
    odd |= std::isnan(x[i]);
    if (x[i] > top) {
      top = x[i];
      at = i;
    }
  }
  for (int j = 0; odd && j < size; ++j) {
    if (std::isnan(x[j])) return -1;
  }
  while (x[at] != top) ++at;
  return at;
}

}  // namespace PHLOEM_ISA
