// The one kernel that AVX512-BF16 changes; the others are those of AVX-512. It sums pairs of
// products in hardware: twice the rate of float32 on AMD's Zen 4 and 5.
#include "gemm_bf16.h"

namespace PHLOEM_ISA {

void gemm_bf16_pairs(const phloem::GemmTask* task);
void gemm_bf16_pairs(const phloem::GemmTask* task) { gemm_bf16(task); }

}  // namespace PHLOEM_ISA
