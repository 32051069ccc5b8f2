#include "terngrad/cc/lib/kernels.h"
#include "terngrad/cc/lib/kernels_impl.h"
#include "terngrad/cc/lib/simd/portable.h"

namespace terngrad {

const Kernels* PortableKernels() { return &kKernelsOf<PortableLanes>; }

}  // namespace terngrad
