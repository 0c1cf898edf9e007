// One slot of one tile: votes, couplings and weighted sums, with samples in the SIMD lanes.
//
// A tile is `Lanes<T, NV>::count` samples (pairs of example and window) side by side; every array of a tile is
// [index][lane]. All samples of a tile use the same transformation in a slot, so a weight is broadcast to the
// lanes and the votes of the slot are a small matrix product that never leaves the first-level cache.
#pragma once
#include <cstring>
#include <limits>
#include <type_traits>

#include "pairs.h"
#include "simd.h"
#include "softmax_options.h"

namespace torchcaps {

template <class T, int NV>
struct Lanes {
  static constexpr int width = Simd<T>::width;
  static constexpr int count = NV * width;
};

// Sizes of a vote, for the inner loops.
struct VoteShape {
  int64_t parents, rows, inner, outer;
  int64_t vote_size() const { return rows * outer; }
  int64_t pose_size() const { return rows * inner; }
  int64_t votes_size() const { return parents * vote_size(); }  // all votes of one slot
  int64_t weight_size() const { return parents * inner * outer; }
};

enum class Metric { dot, euclidean };

// total += x weight, where X is T, or Pair: then two entries of a pose at once.
template <class T, class X>
inline __attribute__((always_inline)) void add_product(Vec<T>& total, Vec<X> x, X weight) {
  if constexpr (std::is_same_v<X, T>)
    total += x * weight;
  else
    total = add_products(total, x, Vec<X>{} + int32_t(weight.bits));
}

// `Count` neighbouring entries of one row of a vote, for all lanes:
// entry_e = base_e + sum_k pose_k weight_ke.
template <class T, int NV, int Inner, int Count, class X>
inline __attribute__((always_inline)) void vote_entries(const X* pose, const X* weight, const T* base,
                                                        int64_t inner_size, int64_t outer, Vec<T> (&entry)[Count][NV]) {
  using L = Lanes<T, NV>;
  const int64_t inner = Inner ? Inner : inner_size;
  for (int e = 0; e < Count; e++)
    for (int v = 0; v < NV; v++) entry[e][v] = broadcast(base[e]);
#pragma GCC unroll 16
  for (int64_t k = 0; k < inner; k++) {
    Vec<X> x[NV];
    for (int v = 0; v < NV; v++) x[v] = load(pose + k * L::count + v * L::width);
    for (int e = 0; e < Count; e++)
      for (int v = 0; v < NV; v++) add_product<T, X>(entry[e][v], x[v], weight[k * outer + e]);
  }
}

// All votes of one slot, and their agreement with the queries: logits_j = <vote_j, query_j>, or the squared
// distance |vote_j - query_j|^2; with gradients also slopes_j = <vote_j, gradient_j>.
template <class T, int NV, int Rows, int Inner, int Outer, Metric metric, bool with_gradient, class X = T>
void slot_votes(const VoteShape& shape, const X* pose, const X* weight, const T* base, const T* query,
                const T* gradient, T* votes, T* logits, T* slopes) {
  using L = Lanes<T, NV>;
  const int64_t rows = Rows ? Rows : shape.rows, inner = Inner ? Inner : shape.inner;
  const int64_t outer = Outer ? Outer : shape.outer;
  int64_t at = 0;  // entry of the votes
  for (int64_t j = 0; j < shape.parents; j++) {
    Vec<T> logit[NV] = {}, slope[NV] = {};
    const auto entries = [&](auto count_tag, int64_t row, int64_t e) {
      constexpr int count = decltype(count_tag)::value;
      Vec<T> entry[count][NV];
      vote_entries<T, NV, Inner, count>(pose + row * inner * L::count, weight + j * inner * outer + e, base + at, inner,
                                        outer, entry);
      for (int i = 0; i < count; i++)
        for (int v = 0; v < NV; v++) {
          const int64_t o = (at + i) * L::count + v * L::width;
          store(votes + o, entry[i][v]);
          if (metric == Metric::dot) {
            logit[v] += entry[i][v] * load(query + o);
          } else {
            const Vec<T> away = entry[i][v] - load(query + o);
            logit[v] += away * away;
          }
          if (with_gradient) slope[v] += entry[i][v] * load(gradient + o);
        }
      at += count;
    };
    for (int64_t row = 0; row < rows; row++) {
      int64_t e = 0;
      for (; e + 4 <= outer; e += 4) entries(std::integral_constant<int, 4>(), row, e);
      for (; e < outer; e++) entries(std::integral_constant<int, 1>(), row, e);
    }
    for (int v = 0; v < NV; v++) {
      store(logits + j * L::count + v * L::width, logit[v]);
      if (with_gradient) store(slopes + j * L::count + v * L::width, slope[v]);
    }
  }
}

// sums_j += sum over `slots` of vote_j, for poses already multiplied by their factor.
template <class T, int NV, int Rows, int Inner, int Outer, class X = T>
void uniform_sums(const VoteShape& shape, int64_t slots, const X* pose, const X* const* weights, T* sums) {
  using L = Lanes<T, NV>;
  const int64_t rows = Rows ? Rows : shape.rows, inner = Inner ? Inner : shape.inner;
  const int64_t outer = Outer ? Outer : shape.outer;
  const int64_t pose_stride = rows * inner * L::count;
  int64_t at = 0;
  for (int64_t j = 0; j < shape.parents; j++) {
    const auto entries = [&](auto count_tag, int64_t row, int64_t e) {
      constexpr int count = decltype(count_tag)::value;
      Vec<T> total[count][NV];
      for (int i = 0; i < count; i++)
        for (int v = 0; v < NV; v++) total[i][v] = load(sums + (at + i) * L::count + v * L::width);
      for (int64_t n = 0; n < slots; n++) {
        const X* weight = weights[n] + j * inner * outer + e;
        const X* x = pose + n * pose_stride + row * inner * L::count;
#pragma GCC unroll 16
        for (int64_t k = 0; k < inner; k++) {
          Vec<X> lane[NV];
          for (int v = 0; v < NV; v++) lane[v] = load(x + k * L::count + v * L::width);
          for (int i = 0; i < count; i++)
            for (int v = 0; v < NV; v++) add_product<T, X>(total[i][v], lane[v], weight[k * outer + i]);
        }
      }
      for (int i = 0; i < count; i++)
        for (int v = 0; v < NV; v++) store(sums + (at + i) * L::count + v * L::width, total[i][v]);
      at += count;
    };
    for (int64_t row = 0; row < rows; row++) {
      int64_t e = 0;
      for (; e + 4 <= outer; e += 4) entries(std::integral_constant<int, 4>(), row, e);
      for (; e < outer; e++) entries(std::integral_constant<int, 1>(), row, e);
    }
  }
}

// How parents compete for a child.
template <class T>
struct Competition {
  int64_t parents;
  bool leaky;
  const uint8_t* partial;  // (J), or null

  bool takes_part(int64_t j) const { return !partial || partial[j]; }
  int64_t num_taking_part() const {
    int64_t count = 0;
    for (int64_t j = 0; j < parents; j++) count += takes_part(j);
    return count;
  }
  // What each parent gets in the first iteration.
  T uniform_share(int64_t j) const { return takes_part(j) ? T(1) / T(num_taking_part() + leaky) : T(0); }

  // Softmax over the parents that take part, in place: [parent][lane]. `scale` multiplies the logits, `factors`
  // (one per lane, or null) the shares.
  template <int NV>
  void softmax(T* logits, T scale, const T* factors = nullptr) const {
    using L = Lanes<T, NV>;
    for (int v = 0; v < NV; v++) {
      T* const lane = logits + v * L::width;
      Vec<T> largest = broadcast(leaky ? T(0) : -std::numeric_limits<T>::max());
      for (int64_t j = 0; j < parents; j++) {
        Vec<T> x = load(lane + j * L::count) * scale;
        if (!takes_part(j)) x = broadcast(-std::numeric_limits<T>::max());
        store(lane + j * L::count, x);
        largest = max(largest, x);
      }
      Vec<T> total = leaky ? exp_of_negative(-largest) : Vec<T>{};
      for (int64_t j = 0; j < parents; j++) {
        const Vec<T> share = takes_part(j) ? exp_of_negative(load(lane + j * L::count) - largest) : Vec<T>{};
        store(lane + j * L::count, share);
        total += share;
      }
      const Vec<T> inverse = (factors ? load(factors + v * L::width) : broadcast(T(1))) / total;
      for (int64_t j = 0; j < parents; j++) store(lane + j * L::count, load(lane + j * L::count) * inverse);
    }
  }
};

// sums_j += coefficient_j vote_j for every parent.
template <class T, int NV>
void add_weighted(int64_t parents, int64_t size, const T* coefficient, const T* votes, T* sums) {
  using L = Lanes<T, NV>;
  for (int64_t j = 0; j < parents; j++) {
    Vec<T> c[NV];
    for (int v = 0; v < NV; v++) c[v] = load(coefficient + j * L::count + v * L::width);
    for (int64_t d = j * size; d < (j + 1) * size; d++)
      for (int v = 0; v < NV; v++) {
        const int64_t o = d * L::count + v * L::width;
        store(sums + o, load(sums + o) + c[v] * load(votes + o));
      }
  }
}

// sums_j += coefficient_j (vote_j - centre_j) for every parent.
template <class T, int NV>
void add_weighted_differences(int64_t parents, int64_t size, const T* coefficient, const T* votes, const T* centre,
                              T* sums) {
  using L = Lanes<T, NV>;
  for (int64_t j = 0; j < parents; j++) {
    Vec<T> c[NV];
    for (int v = 0; v < NV; v++) c[v] = load(coefficient + j * L::count + v * L::width);
    for (int64_t d = j * size; d < (j + 1) * size; d++)
      for (int v = 0; v < NV; v++) {
        const int64_t o = d * L::count + v * L::width;
        store(sums + o, load(sums + o) + c[v] * (load(votes + o) - load(centre + o)));
      }
  }
}

}  // namespace torchcaps
