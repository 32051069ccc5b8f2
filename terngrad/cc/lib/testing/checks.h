// Laws and checks of the programs that test the native code. The first check
// that fails ends the program.

#ifndef TERNGRAD_CC_LIB_TESTING_CHECKS_H_
#define TERNGRAD_CC_LIB_TESTING_CHECKS_H_

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace terngrad {
namespace testing {

inline const char* law = "";  // being checked
inline std::string trying;    // its current case
inline int64_t compared = 0;  // values, by CHECK_SAME

// A law's name and its check.
template <class... Arguments>
struct Law {
  const char* name;
  void (*check)(Arguments...);

  void Check(Arguments... arguments) const {
    law = name;
    trying.clear();
    check(arguments...);
  }
};

// The Law that a function checks; the function's name says it.
#define LAW(function) {#function, function}

// Notes the case that a law tries next.
__attribute__((format(printf, 1, 2))) inline void Try(const char* format, ...) {
  char text[200];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  trying = text;
}

[[noreturn]] inline void Fail(const char* file, int line,
                              const std::string& what) {
  std::printf("%s:%d: %s(%s): not so: %s\n", file, line, law, trying.c_str(),
              what.c_str());
  std::fflush(stdout);
  std::_Exit(1);  // without destructors: other threads may be running
}

#define CHECK(condition) \
  ((condition) ? void()  \
               : ::terngrad::testing::Fail(__FILE__, __LINE__, #condition))

// Checks that both have the same bits; all NaNs are equal.
#define CHECK_SAME(got, want)                                   \
  ::terngrad::testing::CheckSame(got, want, __FILE__, __LINE__, \
                                 #got " is " #want)

template <class T>
bool Same(const T& a, const T& b) {
  if constexpr (std::is_floating_point_v<T>) {
    return (std::isnan(a) && std::isnan(b)) || !std::memcmp(&a, &b, sizeof(a));
  } else {
    return a == b;
  }
}

inline std::string Text(uint32_t x) {
  char text[20];
  std::snprintf(text, sizeof(text), "0x%08x", x);
  return text;
}
inline std::string Text(const std::string& x) { return x; }
inline std::string Text(double x) {
  char text[80];
  std::snprintf(text, sizeof(text), "%.17g = %a", x, x);
  return text;
}

template <class T>
void CheckSame(const T& got, const T& want, const char* file, int line,
               const std::string& what) {
  ++compared;
  if (Same(got, want)) return;
  Fail(file, line, what + ": " + Text(got) + ", not " + Text(want));
}

template <class T>
void CheckSame(const std::vector<T>& got, const std::vector<T>& want,
               const char* file, int line, const std::string& what) {
  if (got.size() != want.size()) {
    Fail(file, line,
         what + ", their sizes: " + std::to_string(got.size()) + ", not " +
             std::to_string(want.size()));
  }
  for (size_t i = 0; i < got.size(); ++i, ++compared) {
    if (Same(got[i], want[i])) continue;
    CheckSame(got[i], want[i], file, line, what + " at " + std::to_string(i));
  }
}

}  // namespace testing
}  // namespace terngrad

#endif  // TERNGRAD_CC_LIB_TESTING_CHECKS_H_
