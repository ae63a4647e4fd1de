// The C interface that runtime/native/abi.py calls by ctypes, and the choice of kernels.
#include <cpuid.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "forward.h"
#include "pack.h"

namespace avx2 {
extern const phloem::KernelTable kernels;
}
namespace avx512 {
extern const phloem::KernelTable kernels;
}
namespace avx512bf16 {
void gemm_bf16_pairs(const phloem::GemmTask* task);
}
namespace amx {
bool request_amx();
void gemm_bf16_tiles(const phloem::GemmTask* task);
void gemm_q4_tiles(const phloem::GemmTask* task);
void gemm_q8_tiles(const phloem::GemmTask* task);
void attend_some(const phloem::AttentionArgs* args, const phloem::AttentionTask* task);
}  // namespace amx

namespace {

thread_local std::string problem;

// The tables that this machine runs, best first. A later instruction set changes some kernels.
std::vector<phloem::KernelTable> find_tables() {
  std::vector<phloem::KernelTable> tables;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return tables;
  }
  tables.push_back(avx2::kernels);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return tables;
  }
  const auto add = [&tables](const char* name, void (*gemm)(const phloem::GemmTask*)) {
    phloem::KernelTable table = avx512::kernels;
    table.name = name;
    table.gemm_bf16 = gemm;
    tables.insert(tables.begin(), table);
  };
  add("avx512", avx512::kernels.gemm_bf16);
  if (__builtin_cpu_supports("avx512bf16")) add("avx512bf16", avx512bf16::gemm_bf16_pairs);
  // cpuid leaf 7: EDX bits 22, 24 and 25 are AMX-BF16, -TILE and -INT8 (compilers name them late).
  constexpr unsigned amx_bits = 1u << 22 | 1u << 24 | 1u << 25;
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx_bits) == amx_bits &&
      amx::request_amx()) {
    add("amx", amx::gemm_bf16_tiles);
    tables.front().gemm_q4 = amx::gemm_q4_tiles;
    tables.front().gemm_q8 = amx::gemm_q8_tiles;
    tables.front().attend = amx::attend_some;
  }
  return tables;
}

const std::vector<phloem::KernelTable>& tables() {
  static const std::vector<phloem::KernelTable> found = find_tables();
  return found;
}

const phloem::KernelTable* kernels_named(const char* name) {
  for (const phloem::KernelTable& table : tables()) {
    if (std::strcmp(table.name, name) == 0) return &table;
  }
  return nullptr;
}

}  // namespace

#define PHLOEM_EXPORT extern "C" __attribute__((visibility("default")))


// Names of the instruction sets this machine runs, best first, separated by spaces.
PHLOEM_EXPORT void phloem_instruction_sets(char* out, int64_t size) {
  std::string names;
  for (const phloem::KernelTable& table : tables()) {
    if (!names.empty()) names += ' ';
    names += table.name;
  }
  std::snprintf(out, static_cast<size_t>(size), "%s", names.c_str());
}

// What went wrong in this thread's last call that returned null or a nonzero value.
PHLOEM_EXPORT const char* phloem_problem() { return problem.c_str(); }

PHLOEM_EXPORT int64_t phloem_packed_bytes(int32_t format, int64_t outputs, int64_t inputs) {
  return (outputs + phloem::kGroup - 1) / phloem::kGroup * (inputs / phloem::kBlock) *
         phloem::block_bytes(format);
}

PHLOEM_EXPORT void phloem_pack_q4(const uint8_t* pairs, const uint16_t* scales, const uint16_t* minimums,
                    int64_t outputs, int64_t inputs, uint8_t* out) {
  phloem::pack_q4(pairs, scales, minimums, outputs, inputs, out);
}

PHLOEM_EXPORT void phloem_pack_q8(const int8_t* values, const float* scales, int64_t outputs, int64_t inputs,
                    uint8_t* out) {
  phloem::pack_q8(values, scales, outputs, inputs, out);
}

PHLOEM_EXPORT void phloem_pack_bf16(const uint16_t* values, int64_t outputs, int64_t inputs, uint8_t* out) {
  phloem::pack_bf16(values, outputs, inputs, out);
}

PHLOEM_EXPORT void* phloem_decoder_new(const phloem::ModelConfig* config, const phloem::Layer* layers,
                         const char* instruction_set, int32_t threads) {
  try {
    const phloem::KernelTable* kernels = kernels_named(instruction_set);
    if (kernels == nullptr) {
      problem = std::string("this machine does not run ") + instruction_set;
      return nullptr;
    }
    return new phloem::Decoder(*config, layers, *kernels, threads);
  } catch (const std::exception& error) {
    problem = error.what();
    return nullptr;
  }
}

PHLOEM_EXPORT void phloem_decoder_free(void* decoder) { delete static_cast<phloem::Decoder*>(decoder); }

// See Decoder::times; three numbers.
PHLOEM_EXPORT void phloem_decoder_times(void* decoder, double* out) {
  static_cast<phloem::Decoder*>(decoder)->times(out);
}

// 0, 1 for a bad batch, 2 if memory ran out.
PHLOEM_EXPORT int32_t phloem_forward(void* decoder, const phloem::Batch* batch) {
  try {
    const char* fault = static_cast<phloem::Decoder*>(decoder)->forward(*batch);
    if (fault == nullptr) return 0;
    problem = fault;
    return 1;
  } catch (const std::bad_alloc& error) {
    problem = error.what();
    return 2;
  }
}
