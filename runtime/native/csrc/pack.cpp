// From row-major weights to the packed layout of the matrix kernels. Nothing is rounded.
//
// 16 outputs (one lane each) x 32 inputs make a block; the blocks of a group of 16 outputs follow
// each other along the inputs, so a product reads memory in one run. Inside a block:
//   kQ4   16 f16 scales, 16 f16 minimums, then [4 quads][16 outputs][4 bytes]: the low halves
//         are inputs 4 quad .. 4 quad + 3, the high halves the same plus 16
//   kQ8   16 f32 scales, then [8 quads][16 outputs][4 bytes], q + 128
//   kBf16 [16 pairs][16 outputs][2 bfloat16]
#include "pack.h"

#include <cstring>

namespace phloem {
namespace {

// Calls block(index in the source's [outputs][blocks], destination, lane) for every block.
template <class Body>
void for_blocks(int format, int64_t outputs, int64_t inputs, uint8_t* out, const Body& body) {
  const int64_t blocks = inputs / kBlock;
  for (int64_t n = 0; n < outputs; ++n) {
    uint8_t* to = out + n / kGroup * blocks * block_bytes(format);
    for (int64_t b = 0; b < blocks; ++b, to += block_bytes(format)) {
      body(n * blocks + b, to, static_cast<int>(n % kGroup));
    }
  }
}

}  // namespace

void pack_q4(const uint8_t* pairs, const uint16_t* scales, const uint16_t* minimums,
             int64_t outputs, int64_t inputs, uint8_t* out) {
  for_blocks(kQ4, outputs, inputs, out, [&](int64_t i, uint8_t* to, int lane) {
    std::memcpy(to + lane * 2, scales + i, 2);
    std::memcpy(to + 32 + lane * 2, minimums + i, 2);
    const uint8_t* from = pairs + i * (kBlock / 2);
    for (int k = 0; k < 16; ++k) {
      const int low = from[k / 2] >> (k % 2 * 4) & 15, high = from[8 + k / 2] >> (k % 2 * 4) & 15;
      to[64 + k / 4 * 64 + lane * 4 + k % 4] = static_cast<uint8_t>(low | high << 4);
    }
  });
}

void pack_q8(const int8_t* values, const float* scales, int64_t outputs, int64_t inputs,
             uint8_t* out) {
  for_blocks(kQ8, outputs, inputs, out, [&](int64_t i, uint8_t* to, int lane) {
    std::memcpy(to + lane * 4, scales + i, 4);
    for (int k = 0; k < kBlock; ++k) {
      to[64 + k / 4 * 64 + lane * 4 + k % 4] = static_cast<uint8_t>(values[i * kBlock + k] + 128);
    }
  });
}

void pack_bf16(const uint16_t* values, int64_t outputs, int64_t inputs, uint8_t* out) {
  for_blocks(kBf16, outputs, inputs, out, [&](int64_t i, uint8_t* to, int lane) {
    for (int pair = 0; pair < kBlock / 2; ++pair) {
      std::memcpy(to + pair * 64 + lane * 4, values + i * kBlock + 2 * pair, 4);
    }
  });
}

}  // namespace phloem
