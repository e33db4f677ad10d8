#include "model/kernels/bf16_pairs.h"

#define MILLRACE_KERNEL_SET avx512_bf16
#define MILLRACE_KERNEL_LANES 16
#define MILLRACE_KERNEL_ROWS 12
#define MILLRACE_KERNEL_BF16
#include "model/kernels/decode_kernels_body.h"
