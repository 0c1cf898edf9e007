// Sums and maxima over the lanes of registers, four registers at a time.
#pragma once
#include "simd.h"

namespace torchcaps {

struct Add {
  template <class V>
  V operator()(V a, V b) const {
    return a + b;
  }
};

struct Max {
  template <class V>
  V operator()(V a, V b) const {
    return max(a, b);
  }
};

// Two registers become one that holds both, half as wide each.
template <class Combine>
inline Simd<float>::Vec halve(Simd<float>::Vec a, Simd<float>::Vec b, Combine combine) {
  using I = Simd<float>::Int;
  return combine(__builtin_shuffle(a, b, I{0, 8, 1, 9, 4, 12, 5, 13}),
                 __builtin_shuffle(a, b, I{2, 10, 3, 11, 6, 14, 7, 15}));
}

template <class Combine>
inline Simd<double>::Vec halve(Simd<double>::Vec a, Simd<double>::Vec b, Combine combine) {
  using I = Simd<double>::Int;
  return combine(__builtin_shuffle(a, b, I{0, 4, 2, 6}), __builtin_shuffle(a, b, I{1, 5, 3, 7}));
}

// result[i] = the lanes of rows[i] combined, for four rows.
template <class Combine>
inline void combine_lanes(const Simd<float>::Vec* rows, Combine combine, float* result) {
  using V = Simd<float>::Vec;
  using I = Simd<float>::Int;
  const V ab = halve(rows[0], rows[1], combine), cd = halve(rows[2], rows[3], combine);
  const V all = combine(__builtin_shuffle(ab, cd, I{0, 1, 8, 9, 4, 5, 12, 13}),
                        __builtin_shuffle(ab, cd, I{2, 3, 10, 11, 6, 7, 14, 15}));
  const V other = __builtin_shuffle(all, I{4, 5, 6, 7, 0, 1, 2, 3});
  const V total = combine(all, other);
  for (int i = 0; i < 4; i++) result[i] = total[i];
}

template <class Combine>
inline void combine_lanes(const Simd<double>::Vec* rows, Combine combine, double* result) {
  using V = Simd<double>::Vec;
  using I = Simd<double>::Int;
  const V ab = halve(rows[0], rows[1], combine), cd = halve(rows[2], rows[3], combine);
  const V total = combine(__builtin_shuffle(ab, cd, I{0, 1, 4, 5}), __builtin_shuffle(ab, cd, I{2, 3, 6, 7}));
  for (int i = 0; i < 4; i++) result[i] = total[i];
}

// The same for any number of rows.
template <class T, class Combine>
inline void combine_lanes(const Vec<T>* rows, int count, Combine combine, T* result) {
  int i = 0;
  for (; i + 4 <= count; i += 4) combine_lanes(rows + i, combine, result + i);
  if (i == count) return;
  Vec<T> rest[4];
  T found[4];
  for (int k = 0; k < 4; k++) rest[k] = rows[i + k < count ? i + k : i];
  combine_lanes(rest, combine, found);
  for (int k = 0; i + k < count; k++) result[i + k] = found[k];
}

}  // namespace torchcaps
