#define MILLRACE_KERNEL_SET avx2
#define MILLRACE_KERNEL_LANES 8
#define MILLRACE_KERNEL_ROWS 6
#include "model/kernels/decode_kernels_body.h"
