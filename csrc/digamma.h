// psi(x) = d ln Gamma(x) / dx and its derivative, for positive numbers.
#pragma once
#include "simd.h"

namespace torchcaps {

// Both at once: psi(x) = psi(x + 10) - sum of 1 / (x + k), k < 10; beyond 10 the asymptotic series, whose terms are those
// of Bernoulli's numbers, is exact to the last digit of a double.
template <class T>
struct Digamma {
  Vec<T> value, slope;

  explicit Digamma(Vec<T> x) : value{}, slope{} {
    for (int k = 0; k < 10; k++) {
      const Vec<T> inverse = T(1) / x;
      value -= inverse;
      slope += inverse * inverse;
      x += T(1);
    }
    const Vec<T> y = T(1) / x, z = y * y;
    value += log(x) - T(0.5) * y - z * series(z, T(1) / 12, T(-1) / 120, T(1) / 252, T(-1) / 240, T(1) / 132,
                                              T(-691) / 32760, T(1) / 12);
    slope += y + T(0.5) * z + y * z * series(z, T(1) / 6, T(-1) / 30, T(1) / 42, T(-1) / 30, T(5) / 66,
                                             T(-691) / 2730, T(7) / 6);
  }

  // To psi(x + 1), for x the argument it has.
  void step(Vec<T> x) {
    const Vec<T> inverse = T(1) / x;
    value += inverse;
    slope -= inverse * inverse;
  }

 private:
  // Horner's scheme, constant first.
  template <class... Rest>
  static Vec<T> series(Vec<T> z, T first, Rest... rest) {
    if constexpr (sizeof...(rest) == 0)
      return broadcast<T>(first);
    else
      return first + z * series(z, rest...);
  }
};

// The sum over d < size of psi((x - d) / 2), x > size - 1, and its derivative by x.
template <class T>
inline void sum_of_halves(Vec<T> x, int size, Vec<T>& value, Vec<T>& slope) {
  value = slope = Vec<T>{};
  for (int parity = 0; parity < 2 && parity < size; parity++) {
    const int count = (size - parity + 1) / 2;  // d = parity, parity + 2, ...: from the last, upwards
    Vec<T> half = T(0.5) * (x - T(parity + 2 * (count - 1)));
    Digamma<T> psi(half);
    for (int k = 0;; k++) {
      value += psi.value;
      slope += T(0.5) * psi.slope;
      if (k + 1 == count) break;
      psi.step(half);
      half += T(1);
    }
  }
}

}  // namespace torchcaps
