// What all parts of the native decoder share: weight formats, model, batch and kernel table.
//
// The structs marked "C layout" are mirrored field by field in runtime/native/abi.py.
#pragma once

#include <cstdint>

namespace phloem {

// Weights are packed in groups of 16 outputs (the lanes of a vector); see pack.cpp. Activation
// rows are packed in tiles of 16 rows; see rows.h.
constexpr int kGroup = 16;
constexpr int kTile = 16;
constexpr int kBlock = 32;  // values that share one scale, of weights and of activations

enum Format : int32_t {
  kAbsent = 0,
  kQ4 = 1,    // per block and output: f16 scale, f16 minimum, 4-bit q; w = scale q + minimum
  kQ8 = 2,    // per block and output: f32 scale, 8-bit q; w = scale (q - 128)
  kBf16 = 3,  // bfloat16 pairs along the inputs
};

// Bytes of 16 outputs x 32 inputs.
constexpr int block_bytes(int format) {
  return format == kQ4 ? 64 + 256 : format == kQ8 ? 64 + 512 : 1024;
}

struct Matrix {  // C layout
  int32_t format;
  int32_t outputs;
  int32_t inputs;  // a multiple of 32
  int32_t reserved;
  const uint8_t* data;  // [ceil(outputs / 16)][inputs / 32][block_bytes(format)]
  const float* bias;    // [outputs] or null
};

struct Layer {  // C layout
  const float* attention_norm;
  const float* mlp_norm;
  const float* query_norm;  // [head_dim] or null
  const float* key_norm;    // [head_dim] or null
  Matrix qkv, output, gate_up, down;
};

struct ModelConfig {  // C layout
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, rotary_dim;
  float norm_epsilon;
  float rope_factor;      // cos and sin are multiplied by this (YaRN), 1 otherwise
  float attention_scale;  // usually head_dim ** -0.5
  int32_t window;         // a row sees at most this many keys, itself included; 0: all
  const float* inverse_frequencies;  // [rotary_dim / 2]
  const float* final_norm;
  Matrix embedding;  // rows are token embeddings
  Matrix head;       // the same data when tied
};

struct Batch {  // C layout; see runtime/model/batch.py for the meaning of the fields
  int64_t rows, seqs, max_pages, wanted, page_size, pool_pages;
  const int64_t *tokens, *positions, *slots;
  const int64_t *query_starts, *context_lens;
  const int64_t* pages;
  const int64_t* logit_rows;
  uint16_t* const* keys;    // [layers] -> bfloat16 [pages, page_size, kv_heads, head_dim]
  uint16_t* const* values;  // likewise
  float* logits;            // [wanted, vocab]
  int64_t* likeliest;       // [wanted], the first largest of each row; -1 where there is a NaN
};

// Activation rows as the matrix kernels read them. Row r lies in tile r / 16, place r % 16.
//   bytes: [tile][block][16][32] int8, with scale, scaled sum and offset per row and block
//   words: [tile][block][16][32] bfloat16
// A matrix reads either bytes (kQ4, kQ8) or words (kBf16).
struct PackedRows {
  int8_t* bytes;
  float* scales;      // [tile][block][16]
  float* sums;        // scale * sum of the 32 bytes: the minimum's share of the product
  int32_t* offsets;   // -128 * sum of the 32 bytes: undoes the unsigned shift of kQ8
  uint16_t* words;
};

// One attention task: the query heads of the KV heads [kv_begin, kv_end), rows [row_begin,
// row_end) of one sequence, keys of the segments [segment_begin, segment_end). At most
// kQueryBlock query vectors.
struct AttentionTask {
  int32_t seq;
  int32_t kv_begin, kv_end;
  int32_t row_begin, row_end;
  int32_t segment_begin, segment_end;
  int64_t first_part;     // where row_begin's result goes
  int32_t parts_per_row;  // distance to the next row's
};

// A part is the unnormalised result of one row over some keys. The buffer of parts has the shape
// [part][kv_heads][heads / kv_heads][2 + head_dim]: maximum score, sum of weights, values.
constexpr int kSegment = 256;  // keys [256 s, 256 s + 256) are summed alone, then combined

struct AttentionArgs {
  const ModelConfig* config;
  const Batch* batch;
  const float* queries;  // row r at r * query_stride, scaled and rotated, [heads, head_dim]
  int64_t query_stride;
  const uint16_t* keys;
  const uint16_t* values;
  float* parts;
  float* scratch;  // attention_scratch(config) floats of this thread
};

// The rows of one matrix product, [row_begin, row_end), for the output groups
// [group_begin, group_end), counted from the first of both in `out`:
// out[r * stride + n] = or += sum_k a[r][k] w[n][k] + bias[n].
struct GemmTask {
  const Matrix* matrix;
  const PackedRows* rows;
  int32_t row_begin, row_end;  // row_begin is a multiple of 16
  int32_t group_begin, group_end;
  float* out;
  int64_t stride;
  bool accumulate;
};

struct KernelTable {
  const char* name;
  // One row of a packed matrix as float32.
  void (*read_row)(const Matrix* matrix, int64_t row, float* out);
  // out[i] = x[i] / rms(x) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int size, float* out);
  // Packs the inputs [begin, begin + count) of a row of `size` for matrices of `format`; x is the
  // first of them. All are multiples of kBlock.
  void (*pack_row)(const float* x, int begin, int count, int size, int format, int64_t row,
                   const PackedRows* out);
  // out[i] = silu(gate[i]) * up[i]
  void (*silu_mul)(const float* gate, const float* up, int size, float* out);
  // Rotates pairs (x[i], x[i + rotary / 2]) of one head in place, and scales the whole head.
  void (*rotate)(float* x, const float* cos, const float* sin, int rotary, int size, float scale);
  void (*store_bf16)(const float* x, int size, uint16_t* out);
  // Where the first largest of x[0, size) stands; -1 if there is a NaN.
  int (*first_largest)(const float* x, int size);
  void (*gemm_q4)(const GemmTask* task);
  void (*gemm_q8)(const GemmTask* task);
  void (*gemm_bf16)(const GemmTask* task);
  void (*attend)(const AttentionArgs* args, const AttentionTask* task);
  // Folds `count` parts, `stride` floats apart, into one normalised head: out[0, head_dim).
  void (*combine)(const float* parts, int count, int64_t stride, int head_dim, float* out);
};

constexpr int kQueryBlock = 48;  // query vectors of one attention task at most
constexpr int kKeyTile = 32;

// Floats of scratch that `attend` needs per thread: keys and values of one tile, scores, and the
// running maximum, sum and result of two levels (tile by tile, segments); the larger of the needs
// of attention.h and attention_tiles.h (TileScratch, where each query may have a group of 16 lanes).
constexpr int64_t attention_scratch(int head_dim) {
  return int64_t{kQueryBlock} * (8 + 32) * head_dim + 96 * int64_t{head_dim} + 8192;
}

}  // namespace phloem
