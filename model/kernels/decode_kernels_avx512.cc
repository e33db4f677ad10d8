#define MILLRACE_KERNEL_SET avx512
#define MILLRACE_KERNEL_LANES 16
#define MILLRACE_KERNEL_ROWS 12
#include "model/kernels/decode_kernels_body.h"
