// The inner steps of EM routing on blocks of `Block` children of one window, in registers of parents.
#pragma once
#include "em.h"

namespace torchcaps {
namespace em {

// Sums over children of weight, weight * delta and weight * delta^2, for one window.
template <class T>
struct Sums {
  Vec<T>* mass;    // [vectors]
  Vec<T>* worth;   // [vectors]: weight * worth, of heinsen
  Vec<T>* first;   // [vectors][D]
  Vec<T>* second;  // [vectors][D]

  static int64_t registers(const Layout<T>& layout) { return layout.vectors * (2 * layout.size + 2); }
  Sums(Vec<T>* start, const Layout<T>& layout)
      : mass(start), worth(start + layout.vectors), first(worth + layout.vectors), second(first + layout.entries()) {}
};

// sums += weight of each child in the block; delta is [Block][vectors][D], weight [Block][vectors].
template <int Block, class T>
inline void accumulate(const Vec<T>* delta, const Vec<T>* weight, int vectors, int size, const Sums<T>& sums) {
  const int stride = vectors * size;
  for (int v = 0; v < vectors; v++) {
    Vec<T> w[Block];
    Vec<T> mass = sums.mass[v];
    for (int m = 0; m < Block; m++) mass += w[m] = weight[m * vectors + v];
    sums.mass[v] = mass;
    for (int h = v * size; h < (v + 1) * size; h++) {
      // children in pairs: one long chain of sums would wait for itself
      Vec<T> first = sums.first[h], second = sums.second[h];
      for (int m = 0; m < Block; m += 2) {
        const Vec<T> d = delta[m * stride + h], weighted = w[m] * d;
        Vec<T> pair = weighted, squares = weighted * d;
        if (m + 1 < Block) {
          const Vec<T> other = delta[(m + 1) * stride + h], other_weighted = w[m + 1] * other;
          pair += other_weighted;
          squares += other_weighted * other;
        }
        first += pair;
        second += squares;
      }
      sums.first[h] = first;
      sums.second[h] = second;
    }
  }
}

// Adds what the children of a block are worth, from the worth of the slot of each.
template <int Block, class T>
inline void accumulate_worth(const Vec<T>* const* worth, const Vec<T>* weight, int vectors, Vec<T>* sums) {
  for (int v = 0; v < vectors; v++)
    for (int m = 0; m < Block; m++) sums[v] += weight[m * vectors + v] * worth[m][v];
}

// log sigmoid(x) = min(x, 0) - log(1 + exp(-|x|)); exact where the activation itself rounds to 0 or 1.
template <class T>
inline Vec<T> log_sigmoid(Vec<T> x) {
  const Vec<T> zero{};
  const Vec<T> negative = x < zero ? x : zero;
  return negative - log(exp(negative + negative - x) + T(1));
}

template <class T>
inline Vec<T> sigmoid(Vec<T> x) {
  return exp(log_sigmoid<T>(x));
}

// What the E-step needs of one window.
template <class T>
struct Gaussians {
  Vec<T>* mean;       // [vectors][D]
  Vec<T>* precision;  // [vectors][D]: 1 / variance
  Vec<T>* prior;      // [vectors]: log weight - 1/2 sum log variance; minus infinity in padding lanes

  static int64_t registers(const Layout<T>& layout) { return layout.vectors * (2 * layout.size + 1); }
  Gaussians(Vec<T>* start, const Layout<T>& layout)
      : mean(start), precision(start + layout.entries()), prior(precision + layout.entries()) {}
};

// Fills the Gaussians of a window from its records.
template <class T>
inline void prepare_gaussians(const Votes<T>& votes, const Layout<T>& layout, const Vec<T>* records,
                              const Gaussians<T>& gaussians) {
  const int size = layout.size, width = Simd<T>::width;
  for (int v = 0; v < layout.vectors; v++) {
    const Record<T> record{const_cast<Vec<T>*>(records) + v * record_registers(layout), size};
    for (int h = 0; h < size; h++) {
      gaussians.mean[v * size + h] = record.mean()[h];
      gaussians.precision[v * size + h] = T(1) / record.variance()[h];
    }
    Vec<T> prior = record.log_weight() - T(0.5) * sum_of_logs<T>(record.variance(), size);
    for (int lane = 0; lane < width; lane++)
      if (v * width + lane >= votes.parents) prior[lane] = -std::numeric_limits<T>::infinity();
    gaussians.prior[v] = prior;
  }
}

}  // namespace em
}  // namespace torchcaps
