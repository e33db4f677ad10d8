#define MILLRACE_KERNEL_SET base
#define MILLRACE_KERNEL_LANES 4
#define MILLRACE_KERNEL_ROWS 4
#include "model/kernels/decode_kernels_body.h"
