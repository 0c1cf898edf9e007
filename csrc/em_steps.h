// The inner steps of EM routing on blocks of `Block` children of one window, in registers of parents.
#pragma once
#include "em.h"
#include "em_lanes.h"

namespace torchcaps {
namespace em {

// Children of one window that are worked on together: sums are loaded and stored once for all of them.
constexpr int block = 4;

// Sums over children of weight, weight * delta and weight * delta^2, for one window.
template <class T>
struct Sums {
  Vec<T>* mass;    // [vectors]
  Vec<T>* first;   // [vectors][D]
  Vec<T>* second;  // [vectors][D]

  static int64_t registers(const Layout<T>& layout) { return layout.vectors * (2 * layout.size + 1); }
  Sums(Vec<T>* start, const Layout<T>& layout)
      : mass(start), first(start + layout.vectors), second(first + layout.entries()) {}
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

// The logits of `Block` children in `count` windows that compete, [count][Block][vectors], become couplings times
// the scale of the child; `log_totals`, if given, takes the logs of the sums of exponentials.
template <int Block, class T>
inline void softmax(Vec<T>* logits, int count, int vectors, const T* scale, T* log_totals) {
  Vec<T> rows[Block];
  T largest[Block], sums[Block];
  for (int m = 0; m < Block; m++) {
    Vec<T> top = logits[m * vectors];
    for (int k = 0; k < count; k++)
      for (int v = 0; v < vectors; v++) top = max(top, logits[(k * Block + m) * vectors + v]);
    rows[m] = top;
  }
  combine_lanes<T>(rows, Block, Max(), largest);
  for (int m = 0; m < Block; m++) {
    Vec<T> total{};
    for (int k = 0; k < count; k++) {
      Vec<T>* row = logits + (k * Block + m) * vectors;
      for (int v = 0; v < vectors; v++) total += row[v] = exp(row[v] - largest[m]);
    }
    rows[m] = total;
  }
  combine_lanes<T>(rows, Block, Add(), sums);
  for (int m = 0; m < Block; m++) {
    const T factor = scale[m] / sums[m];
    for (int k = 0; k < count; k++)
      for (int v = 0; v < vectors; v++) logits[(k * Block + m) * vectors + v] *= factor;
    if (log_totals) log_totals[m] = largest[m] + std::log(sums[m]);
  }
}

// The same where every parent type shares the child among the windows by itself: one softmax in each lane. The sum of
// their logs goes to `log_totals`. Padding lanes, all minus infinity, become 0; in the others a sum is at least 1.
template <int Block, class T>
inline void softmax_over_windows(Vec<T>* logits, int count, int vectors, const T* scale, T* log_totals) {
  const Vec<T> zero{}, one = zero + T(1), lowest = broadcast<T>(std::numeric_limits<T>::lowest());
  for (int m = 0; m < Block; m++) {
    Vec<T> logs{};
    for (int v = 0; v < vectors; v++) {
      Vec<T>* const column = logits + m * vectors + v;
      const int stride = Block * vectors;
      Vec<T> largest = lowest, total{};
      for (int k = 0; k < count; k++) largest = max(largest, column[k * stride]);
      for (int k = 0; k < count; k++) total += column[k * stride] = exp(column[k * stride] - largest);
      const Vec<T> factor = scale[m] / max(total, one);
      for (int k = 0; k < count; k++) column[k * stride] *= factor;
      if (log_totals) logs += total < one ? zero : largest + log(max(total, one));
    }
    if (log_totals) log_totals[m] = sum_lanes<T>(logs);
  }
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
  Vec<T>* prior;      // [vectors]: log a - 1/2 sum log variance; minus infinity in padding lanes

  static int64_t registers(const Layout<T>& layout) { return layout.vectors * (2 * layout.size + 1); }
  Gaussians(Vec<T>* start, const Layout<T>& layout)
      : mean(start), precision(start + layout.entries()), prior(precision + layout.entries()) {}
};

// Fills the Gaussians of a window from its records.
template <class T>
inline void prepare_gaussians(const Votes<T>& votes, const EmOptions<T>& options, const Layout<T>& layout,
                              const Vec<T>* records, const Gaussians<T>& gaussians) {
  const int size = layout.size, width = Simd<T>::width;
  for (int v = 0; v < layout.vectors; v++) {
    const Record<T> record{const_cast<Vec<T>*>(records) + v * layout.record(), size};
    Vec<T> log_variance{};
    for (int h = 0; h < size; h++) {
      const Vec<T> variance = record.variance()[h];
      gaussians.mean[v * size + h] = record.mean()[h];
      gaussians.precision[v * size + h] = T(1) / variance;
      log_variance += log(variance);
    }
    const bool mixing = options.activation == EmOptions<T>::mixing;
    const Vec<T> log_activation = mixing ? record.logit() : log_sigmoid<T>(record.logit());
    Vec<T> prior = log_activation - T(0.5) * log_variance;
    for (int lane = 0; lane < width; lane++)
      if (v * width + lane >= votes.parents) prior[lane] = -std::numeric_limits<T>::infinity();
    gaussians.prior[v] = prior;
  }
}

// Where the votes of a slot are measured from: the given centre, less the bias and the offset of the slot.
template <class T>
inline const Vec<T>* slot_centre(const Votes<T>& votes, const Layout<T>& layout, const Vec<T>* packed_bias,
                                 int64_t slot, const Vec<T>* centre, Vec<T>* buffer) {
  if (!packed_bias && !votes.offset) return centre;
  const Vec<T>* bias = packed_bias ? packed_bias + votes.transform_at(slot) * layout.entries() : nullptr;
  const T* offset = votes.offset ? votes.offset + slot * layout.size : nullptr;
  for (int v = 0; v < layout.vectors; v++) {
    for (int h = 0; h < layout.size; h++) {
      Vec<T> x = centre[v * layout.size + h];
      if (bias) x -= bias[v * layout.size + h];
      if (offset) x -= offset[h];
      buffer[v * layout.size + h] = x;
    }
  }
  return buffer;
}

// [transforms][J][count] -> [transforms][vectors][count] registers, padding lanes 0.
template <class T>
inline void pack_lanes(const T* source, int64_t transforms, int64_t parents, int64_t count, int vectors,
                       Vec<T>* target) {
  constexpr int width = Simd<T>::width;
#pragma omp for schedule(static)
  for (int64_t k = 0; k < transforms; k++) {
    for (int v = 0; v < vectors; v++) {
      for (int64_t e = 0; e < count; e++) {
        Vec<T> x{};
        for (int lane = 0; lane < width && v * width + lane < parents; lane++)
          x[lane] = source[(k * parents + v * width + lane) * count + e];
        target[(k * vectors + v) * count + e] = x;
      }
    }
  }
}

}  // namespace em
}  // namespace torchcaps
