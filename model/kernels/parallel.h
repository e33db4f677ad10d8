// at::parallel_for for the kernels. Its body stands in a header and runs on one thread, silently,
// in a file that is not compiled with OpenMP.
#ifndef MILLRACE_MODEL_KERNELS_PARALLEL_H_
#define MILLRACE_MODEL_KERNELS_PARALLEL_H_

#include <ATen/Parallel.h>

#if defined(__GNUC__) && !defined(__clang__) && !defined(_OPENMP)
#error "compile this file with -fopenmp: without it at::parallel_for runs on one thread"
#endif

#endif  // MILLRACE_MODEL_KERNELS_PARALLEL_H_
