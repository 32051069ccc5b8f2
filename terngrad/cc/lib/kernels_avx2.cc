// Compiled with the instruction set's flags; empty on other processors.

#include "terngrad/cc/lib/kernels.h"

#if defined(__x86_64__)
#include "terngrad/cc/lib/kernels_impl.h"
#include "terngrad/cc/lib/simd/avx2.h"
#endif

namespace terngrad {

#if defined(__x86_64__)
const Kernels* Avx2Kernels() { return &kKernelsOf<Avx2Lanes>; }
#else
const Kernels* Avx2Kernels() { return nullptr; }
#endif

}  // namespace terngrad
