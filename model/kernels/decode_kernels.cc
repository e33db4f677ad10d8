#include "model/kernels/decode_kernels.h"

namespace millrace::decode {

namespace base {
const Kernels& Table();
}
#ifdef MILLRACE_X86_KERNELS
namespace avx2 {
const Kernels& Table();
}
namespace avx512 {
const Kernels& Table();
}
namespace avx512_bf16 {
const Kernels& Table();
}
#endif

std::vector<const Kernels*> AvailableKernels() {
  std::vector<const Kernels*> sets;
#ifdef MILLRACE_X86_KERNELS
  __builtin_cpu_init();
  const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16")) {
      sets.push_back(&avx512_bf16::Table());
    }
    sets.push_back(&avx512::Table());
  }
  if (fma) sets.push_back(&avx2::Table());
#endif
  sets.push_back(&base::Table());
  return sets;
}

const Kernels& BestKernels() {
  static const Kernels& best = *AvailableKernels().front();
  return best;
}

}  // namespace millrace::decode
