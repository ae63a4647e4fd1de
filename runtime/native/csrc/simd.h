// The few vector operations the kernels are written in, for the instruction set of this build.
//
// kernels.cpp is compiled once per instruction set with PHLOEM_ISA set to a namespace name, so
// that one library holds all of them and api.cpp chooses at run time. A vector has kLanes
// floats: 16 with AVX-512, 8 with AVX2. Every reduction order below is fixed, so a result
// depends on the instruction set alone, never on the batch a row travels in.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace PHLOEM_ISA {

inline int32_t load_i32(const void* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

#if defined(__AVX512F__)

constexpr int kLanes = 16;
using F = __m512;
using I = __m512i;

inline F zero() { return _mm512_setzero_ps(); }
inline F splat(float x) { return _mm512_set1_ps(x); }
inline I splat_i32(int32_t x) { return _mm512_set1_epi32(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline I load_bytes(const void* p) { return _mm512_loadu_si512(p); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F abs(F x) { return _mm512_abs_ps(x); }
inline float sum(F x) { return _mm512_reduce_add_ps(x); }
inline float max_of(F x) { return _mm512_reduce_max_ps(x); }
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline I to_int(F x) { return _mm512_cvtps_epi32(x); }
inline F bits_to_float(I x) { return _mm512_castsi512_ps(x); }
inline I float_to_bits(F x) { return _mm512_castps_si512(x); }
inline I add_i32(I a, I b) { return _mm512_add_epi32(a, b); }
inline int32_t sum_i32(I x) { return _mm512_reduce_add_epi32(x); }
inline I shift_left16(I x) { return _mm512_slli_epi32(x, 16); }
inline I high_half(I x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff0000)); }
inline I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline I high_nibbles(I x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
inline F load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return bits_to_float(shift_left16(_mm512_cvtepu16_epi32(half)));
}
inline void store_i8(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
inline void store_u16(uint16_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
inline I shift_right16(I x) { return _mm512_srli_epi32(x, 16); }
inline I odd_bit(I x) { return _mm512_and_si512(x, _mm512_set1_epi32(1)); }
// 2^n for integral n, by writing the exponent field.
inline F pow2(F n) {
  return bits_to_float(_mm512_slli_epi32(_mm512_add_epi32(to_int(n), splat_i32(127)), 23));
}
inline F round(F x) { return _mm512_roundscale_ps(x, 0); }
// Lanes [0, n) of x, and `other` in the lanes [n, kLanes).
inline F first_lanes(F x, int n, F other) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << n) - 1), other, x);
}

// acc + the four products of unsigned w and signed a bytes in each 32-bit lane.
inline I dot4(I acc, I w, const int8_t* a) {
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(load_i32(a)));
}
// Eight quads of a block of 32: w holds values < 16 (4-bit) or any byte (8-bit).
inline I dot_nibbles(const I* w, const int8_t* a) {
  I acc = _mm512_setzero_si512();
  for (int i = 0; i < 8; ++i) acc = dot4(acc, w[i], a + 4 * i);
  return acc;
}
inline I dot_bytes(const I* w, const int8_t* a, int32_t start) {
  I acc = splat_i32(start);
  for (int i = 0; i < 8; ++i) acc = dot4(acc, w[i], a + 4 * i);
  return acc;
}

// x[i] holds 16 words of row i; afterwards x[i] holds word i of the 16 rows.
inline void transpose(I* x) {
  I t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

#else  // AVX2, FMA, F16C

constexpr int kLanes = 8;
using F = __m256;
using I = __m256i;

inline F zero() { return _mm256_setzero_ps(); }
inline F splat(float x) { return _mm256_set1_ps(x); }
inline I splat_i32(int32_t x) { return _mm256_set1_epi32(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline I load_bytes(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline float sum(F x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float max_of(F x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline I to_int(F x) { return _mm256_cvtps_epi32(x); }
inline F bits_to_float(I x) { return _mm256_castsi256_ps(x); }
inline I float_to_bits(F x) { return _mm256_castps_si256(x); }
inline I add_i32(I a, I b) { return _mm256_add_epi32(a, b); }
inline int32_t sum_i32(I x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline I shift_left16(I x) { return _mm256_slli_epi32(x, 16); }
inline I high_half(I x) { return _mm256_and_si256(x, _mm256_set1_epi32(0xffff0000)); }
inline I low_nibbles(I x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline I high_nibbles(I x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
inline F load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F load_bf16(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return bits_to_float(shift_left16(_mm256_cvtepu16_epi32(half)));
}
inline void store_i8(int8_t* p, I x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline void store_u16(uint16_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
inline I shift_right16(I x) { return _mm256_srli_epi32(x, 16); }
inline I odd_bit(I x) { return _mm256_and_si256(x, _mm256_set1_epi32(1)); }
inline F pow2(F n) {
  return bits_to_float(_mm256_slli_epi32(_mm256_add_epi32(to_int(n), splat_i32(127)), 23));
}
inline F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F first_lanes(F x, int n, F other) {
  const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(other, x, bits_to_float(_mm256_cmpgt_epi32(splat_i32(n), lane)));
}

// 4-bit weights: 8 x 2 x 15 x 127 = 30480 fits the saturating 16-bit sums.
inline I dot_nibbles(const I* w, const int8_t* a) {
  I acc = _mm256_maddubs_epi16(w[0], splat_i32(load_i32(a)));
  for (int i = 1; i < 8; ++i) {
    acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w[i], splat_i32(load_i32(a + 4 * i))));
  }
  return _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
}
// 8-bit weights would saturate there: widen even and odd bytes to 16 bits first.
inline I dot_bytes(const I* w, const int8_t* a, int32_t start) {
  I acc = splat_i32(start);
  for (int i = 0; i < 8; ++i) {
    const I x = splat_i32(load_i32(a + 4 * i));
    const I even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
    const I w_even = _mm256_and_si256(w[i], _mm256_set1_epi16(255));
    acc = add_i32(acc, _mm256_madd_epi16(w_even, even));
    acc = add_i32(acc, _mm256_madd_epi16(_mm256_srli_epi16(w[i], 8), _mm256_srai_epi16(x, 8)));
  }
  return acc;
}

inline void transpose(I* x) {
  I t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    x[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
    t[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) x[i] = t[i];
}

#endif

// float32 -> bfloat16, to nearest even, in the low half of each 32-bit lane.
inline I to_bf16(F x) {
  const I bits = float_to_bits(x);
  const I bias = add_i32(odd_bit(shift_right16(bits)), splat_i32(0x7fff));
  return shift_right16(add_i32(bits, bias));
}

// exp(x) for x <= 88, relative error about 1e-7: 2^n e^r with |r| <= ln2 / 2 and a Taylor
// polynomial of degree 7. Below -87 the result is clamped to e^-87, about 1e-38.
inline F exp(F x) {
  x = max(x, splat(-87.0f));
  const F n = round(mul(x, splat(1.44269504088896341f)));
  // ln2 in two parts, so that x - n ln2 keeps its low bits.
  F r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return mul(p, pow2(n));
}

}  // namespace PHLOEM_ISA
