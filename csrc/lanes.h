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

// result[i] = the lanes of rows[i] combined, for four rows: two registers become one that holds both, half as wide
// each, then once more, and what the runs of four lanes hold is combined.
template <class T, class Combine>
inline void combine_lanes(const Vec<T>* rows, Combine combine, T* result) {
  constexpr int width = Simd<T>::width;
  // Of runs of four lanes the first two of a and b, in turns, or the last two.
  const auto halve = [&](Vec<T> a, Vec<T> b) {
    return combine(shuffle<T>(a, b, [](int l) constexpr { return l / 4 * 4 + l % 4 / 2 + l % 2 * width; }),
                   shuffle<T>(a, b, [](int l) constexpr { return l / 4 * 4 + l % 4 / 2 + l % 2 * width + 2; }));
  };
  const Vec<T> ab = halve(rows[0], rows[1]), cd = halve(rows[2], rows[3]);
  Vec<T> total =
      combine(shuffle<T>(ab, cd, [](int l) constexpr { return l / 4 * 4 + l % 2 + l % 4 / 2 * width; }),
              shuffle<T>(ab, cd, [](int l) constexpr { return l / 4 * 4 + l % 2 + l % 4 / 2 * width + 2; }));
  if constexpr (width >= 16) total = combine(total, shuffle<T>(total, total, [](int l) constexpr { return (l + 8) % width; }));
  if constexpr (width >= 8) total = combine(total, shuffle<T>(total, total, [](int l) constexpr { return (l + 4) % width; }));
  for (int i = 0; i < 4; i++) result[i] = total[i];
}

// The same for any number of rows.
template <class T, class Combine>
inline void combine_lanes(const Vec<T>* rows, int count, Combine combine, T* result) {
  int i = 0;
  for (; i + 4 <= count; i += 4) combine_lanes<T>(rows + i, combine, result + i);
  if (i == count) return;
  Vec<T> rest[4];
  T found[4];
  for (int k = 0; k < 4; k++) rest[k] = rows[i + k < count ? i + k : i];
  combine_lanes<T>(rest, combine, found);
  for (int k = 0; i + k < count; k++) result[i + k] = found[k];
}

}  // namespace torchcaps
