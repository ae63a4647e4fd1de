// The kernels of one instruction set. Compiled once per set, with PHLOEM_ISA naming it.
#include "attention.h"
#include "gemm_bf16.h"
#include "gemm_int8.h"
#include "model.h"
#include "rows.h"

#define PHLOEM_TEXT_OF(x) #x
#define PHLOEM_TEXT(x) PHLOEM_TEXT_OF(x)

namespace PHLOEM_ISA {

extern const phloem::KernelTable kernels;
const phloem::KernelTable kernels = {
    PHLOEM_TEXT(PHLOEM_ISA), read_row, rms_norm, pack_row, silu_mul,  rotate, store_bf16,
    first_largest,           gemm_q4,  gemm_q8,  gemm_bf16, attend,   combine,
};

}  // namespace PHLOEM_ISA
