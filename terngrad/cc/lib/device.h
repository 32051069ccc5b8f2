// What g++ and the CUDA compilers need to compile the same headers.

#ifndef TERNGRAD_CC_LIB_DEVICE_H_
#define TERNGRAD_CC_LIB_DEVICE_H_

#ifdef __CUDACC_RTC__  // NVRTC has no standard headers
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#include <cstring>
#endif

// Marks functions that GPUs run too.
#ifdef __CUDACC__
#define TERNGRAD_DEVICE __device__
#else
#define TERNGRAD_DEVICE
#endif

#endif  // TERNGRAD_CC_LIB_DEVICE_H_
