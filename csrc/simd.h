// Vectors that fill one register, from the compiler's own vector types.
//
// The width is all that instruction sets differ in here: 64 bytes where the compiler was given AVX-512, else 32, which
// is one register of AVX2 and two of SSE2 or NEON. Each build is a library of its own, so no symbol is shared between
// them.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace torchcaps {

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define TORCHCAPS_AVX512
constexpr int register_bytes = 64, num_registers = 32;
#else
constexpr int register_bytes = 32, num_registers = 16;
#endif

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(register_bytes)));
  typedef float Unaligned __attribute__((vector_size(register_bytes), aligned(4), may_alias));
  typedef int32_t Int __attribute__((vector_size(register_bytes)));
  static constexpr int width = register_bytes / 4;
};

template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(register_bytes)));
  typedef double Unaligned __attribute__((vector_size(register_bytes), aligned(8), may_alias));
  typedef int64_t Int __attribute__((vector_size(register_bytes)));
  static constexpr int width = register_bytes / 8;
};

template <class T>
using Vec = typename Simd<T>::Vec;

template <class T>
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename Simd<T>::Unaligned*>(p);
}

template <class T>
inline void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename Simd<T>::Unaligned*>(p) = v;
}

// Stores past the caches, for large results that nobody reads soon; `p` must be aligned to a vector. Other threads
// may rely on the result after finish_streaming().
template <class T>
inline void stream(T* p, Vec<T> v) {
#if defined(TORCHCAPS_AVX512)
  if constexpr (sizeof(T) == 4)
    __builtin_ia32_movntps512(p, v);
  else
    __builtin_ia32_movntpd512(p, v);
#elif defined(__AVX__)
  if constexpr (sizeof(T) == 4)
    __builtin_ia32_movntps256(p, v);
  else
    __builtin_ia32_movntpd256(p, v);
#else
  store(p, v);
#endif
}

inline void finish_streaming() {
#if defined(__AVX__)
  __builtin_ia32_sfence();
#endif
}

template <class T>
inline Vec<T> broadcast(T x) {
  return x - Vec<T>{};  // x - 0 is x, so nothing is computed; x + 0 would turn -0 into 0
}

template <class V>
inline V max(V a, V b) {
  return a > b ? a : b;
}

// Lane l of the result is lane pattern(l) of the two registers side by side; the numbers are known to the compiler.
template <class T, class Pattern, int... Lane>
inline Vec<T> shuffle(Vec<T> a, Vec<T> b, Pattern pattern, std::integer_sequence<int, Lane...>) {
  return __builtin_shuffle(a, b, typename Simd<T>::Int{pattern(Lane)...});
}
template <class T, class Pattern>
inline Vec<T> shuffle(Vec<T> a, Vec<T> b, Pattern pattern) {
  return shuffle<T>(a, b, pattern, std::make_integer_sequence<int, Simd<T>::width>());
}

template <class T>
inline T sum_lanes(Vec<T> v) {
  constexpr int width = Simd<T>::width, kept = width < 8 ? width : 8;
  if constexpr (kept < width) v += shuffle<T>(v, v, [](int l) constexpr { return (l + kept) % width; });
  T total = 0;
  for (int i = 0; i < kept; i++) total += v[i];
  return total;
}

// Turns a square of `width` rows around in registers: rows that lie `Distance` apart exchange every other run of so
// many lanes, for distances 1, 2, 4 and so on.
template <class T, int Distance = 1>
inline void transpose(Vec<T> (&row)[Simd<T>::width]) {
  constexpr int width = Simd<T>::width;
  for (int i = 0; i < width; i++) {
    if (i & Distance) continue;
    const Vec<T> upper = row[i], lower = row[i + Distance];
    row[i] = shuffle<T>(upper, lower, [](int l) constexpr { return l & Distance ? width + l - Distance : l; });
    row[i + Distance] = shuffle<T>(upper, lower, [](int l) constexpr { return l & Distance ? width + l : l + Distance; });
  }
  if constexpr (2 * Distance < width) transpose<T, 2 * Distance>(row);
}

// to[column][row] = from[row][column] for `rows` rows that lie wherever `from` says.
template <class T>
inline void transpose_rows(const T* const* from, int64_t rows, int64_t columns, T* to, int64_t stride) {
  constexpr int width = Simd<T>::width;
  int64_t r = 0;
  for (; r + width <= rows; r += width) {
    int64_t c = 0;
    for (; c + width <= columns; c += width) {
      Vec<T> square[width];
      for (int i = 0; i < width; i++) square[i] = load(from[r + i] + c);
      transpose<T>(square);
      for (int i = 0; i < width; i++) store(to + (c + i) * stride + r, square[i]);
    }
    for (; c < columns; c++)
      for (int i = 0; i < width; i++) to[c * stride + r + i] = from[r + i][c];
  }
  for (int64_t left = rows % width; left > 0; left--) {
    T* place = to + rows - left;
    for (int64_t c = 0; c < columns; c++, place += stride) *place = from[rows - left][c];
  }
}

// The way back: to[row][column] = from[column][row]; rows without a place (null) are left out.
template <class T>
inline void transpose_columns(const T* from, int64_t stride, int64_t rows, int64_t columns, T* const* to) {
  constexpr int width = Simd<T>::width;
  int64_t r = 0;
  for (; r + width <= rows; r += width) {
    int64_t c = 0;
    for (; c + width <= columns; c += width) {
      Vec<T> square[width];
      for (int i = 0; i < width; i++) square[i] = load(from + (c + i) * stride + r);
      transpose<T>(square);
      for (int i = 0; i < width; i++)
        if (to[r + i]) store(to[r + i] + c, square[i]);
    }
    for (; c < columns; c++)
      for (int i = 0; i < width; i++)
        if (to[r + i]) to[r + i][c] = from[c * stride + r + i];
  }
  for (; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      if (to[r]) to[r][c] = from[c * stride + r];
}

// exp of numbers between -87 and 88: range reduction by ln 2 and a degree-6 polynomial (Cephes coefficients).
inline Simd<float>::Vec exp_in_range(Simd<float>::Vec x) {
  using V = Simd<float>::Vec;
  using I = Simd<float>::Int;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const V rounded = (x * 1.44269504088896341f + shift) - shift;
  const I exponent = __builtin_convertvector(rounded, I);
  x = (x - rounded * 0.693359375f) + rounded * 2.12194440e-4f;
  V y = broadcast<float>(1.9875691500e-4f);
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * x * x + x + 1.0f;
  const I bits = (exponent + 127) << 23;
  return y * (V)bits;
}

// exp of any number; below -87 it gives 0.
inline Simd<float>::Vec exp(Simd<float>::Vec x) {
  using V = Simd<float>::Vec;
  const Simd<float>::Int vanishes = x < -87.0f;
  const V top = broadcast<float>(88.0f);
  x = x > top ? top : x;
  const V y = exp_in_range(vanishes ? V{} : x);
  return vanishes ? V{} : y;
}

// exp of numbers up to 0; below -87 it gives 0.
inline Simd<float>::Vec exp_of_negative(Simd<float>::Vec x) {
  const Simd<float>::Vec least = broadcast<float>(-87.0f), y = exp_in_range(max(least, x));
  return x < least ? Simd<float>::Vec{} : y;
}

inline Simd<double>::Vec exp(Simd<double>::Vec x) {
  for (int i = 0; i < Simd<double>::width; i++) x[i] = std::exp(x[i]);
  return x;
}

inline Simd<double>::Vec exp_of_negative(Simd<double>::Vec x) { return exp(x); }

// log of a positive normal number: exponent plus a degree-9 polynomial of the mantissa (Cephes coefficients).
inline Simd<float>::Vec log(Simd<float>::Vec x) {
  using V = Simd<float>::Vec;
  using I = Simd<float>::Int;
  const I bits = (I)x;
  I exponent = (bits >> 23) - 126;
  V m = (V)((bits & 0x007fffff) | 0x3f000000);  // mantissa in [0.5, 1)
  const I low = m < 0.707106781186547524f;
  exponent += low;  // low is -1 where true
  m = (low ? m + m : m) - 1.0f;
  const V z = m * m;
  V y = broadcast<float>(7.0376836292e-2f);
  y = y * m - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  const V e = __builtin_convertvector(exponent, V);
  y = y * m * z + e * -2.12194440e-4f - 0.5f * z;
  return m + y + e * 0.693359375f;
}

inline Simd<double>::Vec log(Simd<double>::Vec x) {
  for (int i = 0; i < Simd<double>::width; i++) x[i] = std::log(x[i]);
  return x;
}

// The sum of the logs of `count` positive normal numbers: exponents are added up and mantissas multiplied, so that one
// log does for many.
template <class T>
inline Vec<T> sum_of_logs(const Vec<T>* x, int count) {
  using V = Vec<T>;
  using I = typename Simd<T>::Int;
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  constexpr int digits = sizeof(T) == 4 ? 23 : 52, together = 64;  // mantissas in [1/2, 1), so that products are normal
  constexpr Bits mantissa = (Bits(1) << digits) - 1, bias = sizeof(T) == 4 ? 126 : 1022, half = bias << digits;
  V total{};
  I exponents{};
  for (int first = 0; first < count; first += together) {
    V product = broadcast<T>(1);
    for (int i = first; i < count && i < first + together; i++) {
      const I bits = (I)x[i];
      exponents += (bits >> digits) - bias;
      product *= (V)((bits & mantissa) | half);
    }
    total += log(product);
  }
  return total + T(0.693147180559945309) * __builtin_convertvector(exponents, V);
}

}  // namespace torchcaps
