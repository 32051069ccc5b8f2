// Lets a thread treat denormal values as TensorFlow's threads do.

#ifndef TERNGRAD_CC_LIB_FLUSHING_H_
#define TERNGRAD_CC_LIB_FLUSHING_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terngrad {

// Flushes denormal values during its lifetime, as TensorFlow's threads do.
class Flushing {
 public:
  explicit Flushing(bool flush) : saved_(Control()) {
    if (flush) SetControl(saved_ | kFlush);
  }
  ~Flushing() { SetControl(saved_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040;  // of results and of operands
  static uint64_t Control() { return _mm_getcsr(); }
  static void SetControl(uint64_t control) {
    _mm_setcsr(static_cast<uint32_t>(control));
  }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;
  static uint64_t Control() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void SetControl(uint64_t control) {
    asm volatile("msr fpcr, %0" : : "r"(control));
  }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t Control() { return 0; }
  static void SetControl(uint64_t) {}
#endif

  uint64_t saved_;
};

}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_FLUSHING_H_
