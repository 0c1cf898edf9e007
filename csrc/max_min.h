// Max-min couplings: the place of a logit between the smallest and the largest of those that compete, in the place of a
// softmax. Lanes are parents; logits of parents that take no part are minus infinity.
#pragma once
#include <limits>

#include "lanes.h"

namespace torchcaps {
namespace by_child {

struct Min {
  template <class V>
  V operator()(V a, V b) const {
    return a < b ? a : b;
  }
};

// Logits that lie no further apart are equal: gradients of places between them would overflow.
template <class T>
constexpr T least_spread = sizeof(T) == 4 ? T(1e-19) : T(1e-150);

// The extremes of one competition; the inverse of their spread is 0 where they are equal.
template <class T>
struct Extremes {
  Vec<T> smallest, largest, inverse_spread;
};

// Of the logits [count][stride] from `logits` on, at `vectors` registers each: in every lane by itself (`by_type`, one
// register alone) or over all lanes.
template <class T>
inline Extremes<T> find_extremes(const Vec<T>* logits, int count, int stride, int vectors, bool by_type) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const Vec<T> never = broadcast<T>(-infinity);
  Extremes<T> found{broadcast<T>(infinity), never, {}};
  for (int k = 0; k < count; k++) {
    for (int v = 0; v < vectors; v++) {
      const Vec<T> x = logits[k * stride + v];
      found.largest = max(found.largest, x);
      found.smallest = Min()(found.smallest, x == never ? broadcast<T>(infinity) : x);
    }
  }
  if (!by_type) {
    T smallest, largest;
    combine_lanes<T>(&found.smallest, 1, Min(), &smallest);
    combine_lanes<T>(&found.largest, 1, Max(), &largest);
    found.smallest = broadcast<T>(smallest), found.largest = broadcast<T>(largest);
  }
  const Vec<T> zero{}, spread = found.largest - found.smallest;
  const auto differ = spread > least_spread<T>;
  found.inverse_spread = differ ? T(1) / (differ ? spread : zero + T(1)) : zero;
  return found;
}

// Calls body(first register, how many registers) for the competitions of one child: all types, or each by itself.
template <class Body>
inline void for_each_competition(int vectors, bool by_type, Body&& body) {
  for (int v = 0; v < vectors; v += by_type ? 1 : vectors) body(v, by_type ? 1 : vectors);
}

// The logits of `Block` children in `count` windows, [count][Block][vectors], become couplings times the scale of the
// child: 1 for all where logits are equal.
template <int Block, class T>
inline void max_min(Vec<T>* logits, int count, int vectors, const T* scale, bool by_type) {
  const Vec<T> zero{}, one = zero + T(1), never = broadcast<T>(-std::numeric_limits<T>::infinity());
  const int stride = Block * vectors;
  for (int m = 0; m < Block; m++) {
    for_each_competition(vectors, by_type, [&](int first, int size) {
      Vec<T>* const start = logits + m * vectors + first;
      const Extremes<T> found = find_extremes<T>(start, count, stride, size, by_type);
      for (int k = 0; k < count; k++) {
        for (int v = 0; v < size; v++) {
          const Vec<T> x = start[k * stride + v];
          const Vec<T> place = found.inverse_spread > zero ? (x - found.smallest) / (found.largest - found.smallest) : one;
          start[k * stride + v] = x == never ? zero : scale[m] * place;
        }
      }
    });
  }
}

// Subtracts `amount` from the slope of the first logit that equals `extreme`: in every lane, or once.
template <class T>
inline void take_from_first(const Vec<T>* logits, Vec<T>* slopes, int count, int stride, int vectors, bool by_type,
                            Vec<T> extreme, Vec<T> amount) {
  bool taken[Simd<T>::width] = {};
  for (int k = 0; k < count; k++) {
    for (int v = 0; v < vectors; v++) {
      for (int lane = 0; lane < Simd<T>::width; lane++) {
        bool& done = taken[by_type ? lane : 0];
        if (done || logits[k * stride + v][lane] != extreme[lane]) continue;
        slopes[k * stride + v][lane] -= amount[lane];
        done = true;
      }
    }
  }
}

// `slopes`, the gradients of the couplings of one child, become those of its logits: the part that goes through an
// extreme goes to the first parent that has it.
template <int Block, class T>
inline void max_min_backward(const Vec<T>* logits, int count, int vectors, bool by_type, Vec<T>* slopes) {
  const Vec<T> zero{}, never = broadcast<T>(-std::numeric_limits<T>::infinity());
  const int stride = Block * vectors;
  for (int m = 0; m < Block; m++) {
    for_each_competition(vectors, by_type, [&](int first, int size) {
      const Vec<T>* const start = logits + m * vectors + first;
      Vec<T>* const slope = slopes + m * vectors + first;
      const Extremes<T> found = find_extremes<T>(start, count, stride, size, by_type);
      Vec<T> to_smallest{}, to_largest{};
      for (int k = 0; k < count; k++) {
        for (int v = 0; v < size; v++) {
          const Vec<T> x = start[k * stride + v], place = (x - found.smallest) * found.inverse_spread;
          const Vec<T> given = x == never ? zero : slope[k * stride + v] * found.inverse_spread;
          to_largest += x == never ? zero : given * place;
          to_smallest += x == never ? zero : given * (T(1) - place);
          slope[k * stride + v] = given;
        }
      }
      if (!by_type) {
        to_smallest = broadcast<T>(sum_lanes<T>(to_smallest));
        to_largest = broadcast<T>(sum_lanes<T>(to_largest));
      }
      take_from_first<T>(start, slope, count, stride, size, by_type, found.smallest, to_smallest);
      take_from_first<T>(start, slope, count, stride, size, by_type, found.largest, to_largest);
    });
  }
}

}  // namespace by_child
}  // namespace torchcaps
