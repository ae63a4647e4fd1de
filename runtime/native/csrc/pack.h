// Packing weights into the layout of the matrix kernels: see pack.cpp.
#pragma once

#include "model.h"

namespace phloem {

// All sources are row-major [outputs][inputs], inputs a multiple of 32; scales and minimums are
// [outputs][inputs / 32]. `out` has room for whole groups of 16 outputs and starts as zeros.

// `pairs` [outputs][inputs / 2]: input 2i in the low half of byte i; float16 scale and minimum.
void pack_q4(const uint8_t* pairs, const uint16_t* scales, const uint16_t* minimums,
             int64_t outputs, int64_t inputs, uint8_t* out);
void pack_q8(const int8_t* values, const float* scales, int64_t outputs, int64_t inputs,
             uint8_t* out);
void pack_bf16(const uint16_t* values, int64_t outputs, int64_t inputs, uint8_t* out);

}  // namespace phloem
