// Vectors of eight floats or four doubles, from the compiler's own vector types.
//
// Nothing here names an instruction set: built with -mavx2 -mfma a vector is one register, elsewhere (SSE2,
// NEON) the compiler splits it. Each build is a library of its own, so no symbol is shared between them.
#pragma once
#include <cmath>
#include <cstdint>

namespace torchcaps {

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(32)));
  typedef float Unaligned __attribute__((vector_size(32), aligned(4), may_alias));
  typedef int32_t Int __attribute__((vector_size(32)));
  static constexpr int width = 8;
};

template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(32)));
  typedef double Unaligned __attribute__((vector_size(32), aligned(8), may_alias));
  typedef int64_t Int __attribute__((vector_size(32)));
  static constexpr int width = 4;
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
#if defined(__AVX__)
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

template <class T>
inline T sum_lanes(Vec<T> v) {
  T total = 0;
  for (int i = 0; i < Simd<T>::width; i++) total += v[i];
  return total;
}

// Turns a square of `width` rows around in registers.
inline void transpose(Simd<float>::Vec (&row)[8]) {
  using I = Simd<float>::Int;
  Simd<float>::Vec half[8];
  for (int i = 0; i < 8; i += 2) {  // pairs of rows
    half[i] = __builtin_shuffle(row[i], row[i + 1], I{0, 8, 2, 10, 4, 12, 6, 14});
    half[i + 1] = __builtin_shuffle(row[i], row[i + 1], I{1, 9, 3, 11, 5, 13, 7, 15});
  }
  for (int i = 0; i < 8; i += 4)  // fours
    for (int j = 0; j < 2; j++) {
      row[i + j] = __builtin_shuffle(half[i + j], half[i + j + 2], I{0, 1, 8, 9, 4, 5, 12, 13});
      row[i + j + 2] = __builtin_shuffle(half[i + j], half[i + j + 2], I{2, 3, 10, 11, 6, 7, 14, 15});
    }
  for (int i = 0; i < 4; i++) {  // halves
    half[i] = __builtin_shuffle(row[i], row[i + 4], I{0, 1, 2, 3, 8, 9, 10, 11});
    half[i + 4] = __builtin_shuffle(row[i], row[i + 4], I{4, 5, 6, 7, 12, 13, 14, 15});
  }
  for (int i = 0; i < 8; i++) row[i] = half[i];
}

inline void transpose(Simd<double>::Vec (&row)[4]) {
  using I = Simd<double>::Int;
  Simd<double>::Vec half[4];
  for (int i = 0; i < 4; i += 2) {
    half[i] = __builtin_shuffle(row[i], row[i + 1], I{0, 4, 2, 6});
    half[i + 1] = __builtin_shuffle(row[i], row[i + 1], I{1, 5, 3, 7});
  }
  for (int i = 0; i < 2; i++) {
    row[i] = __builtin_shuffle(half[i], half[i + 2], I{0, 1, 4, 5});
    row[i + 2] = __builtin_shuffle(half[i], half[i + 2], I{2, 3, 6, 7});
  }
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
      transpose(square);
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
      transpose(square);
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
  for (int i = 0; i < 4; i++) x[i] = std::exp(x[i]);
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
  for (int i = 0; i < 4; i++) x[i] = std::log(x[i]);
  return x;
}

}  // namespace torchcaps
