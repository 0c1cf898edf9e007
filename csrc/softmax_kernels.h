// The inner loops for one shape of votes: unrolled where the sizes are known to the compiler.
#pragma once
#include "softmax_gradient.h"
#include "softmax_tile.h"

namespace torchcaps {

constexpr int slots_at_once = 4;  // slots of the last sweep that share the vectors of their terms

template <class T>
struct SlotKernels {
  using SlotVotes = void (*)(const VoteShape&, const T*, const T*, const T*, const T*, const T*, T*, T*, T*);
  using VoteGradients = void (*)(const VoteShape&, int64_t, const T*, const T*, const T*, int64_t, T*, int64_t);

  SlotVotes votes;                // with logits
  SlotVotes votes_with_gradient;  // with logits and slopes
  void (*uniform)(const VoteShape&, int64_t, const T*, const T* const*, T*);
  VoteGradients vote_gradients;       // of slots_at_once slots
  VoteGradients one_vote_gradients;   // of one slot
  void (*weight_gradient)(const VoteShape&, const SlotGradients<T>&, Write, T*);
  void (*pose_gradients)(const VoteShape&, const SlotGradients<T>&, const T*, T*);
};

template <class T, int NV, int Rows, int Inner, int Outer>
SlotKernels<T> slot_kernels_for(Metric metric) {
  const bool dot = metric == Metric::dot;
  return {dot ? slot_votes<T, NV, Rows, Inner, Outer, Metric::dot, false>
              : slot_votes<T, NV, 0, 0, 0, Metric::euclidean, false>,
          dot ? slot_votes<T, NV, Rows, Inner, Outer, Metric::dot, true>
              : slot_votes<T, NV, 0, 0, 0, Metric::euclidean, true>,
          uniform_sums<T, NV, Rows, Inner, Outer>,
          vote_gradients<T, NV, Rows, Outer, slots_at_once>,
          vote_gradients<T, NV, Rows, Outer, 1>,
          weight_gradient<T, NV, Rows, Inner, Outer>,
          pose_gradients<T, NV, Rows, Inner, Outer>};
}

template <class T, int NV>
SlotKernels<T> choose_slot_kernels(const VoteShape& shape, Metric metric) {
  const auto is = [&](int64_t rows, int64_t inner, int64_t outer) {
    return shape.rows == rows && shape.inner == inner && shape.outer == outer;
  };
  if (is(1, 8, 16)) return slot_kernels_for<T, NV, 1, 8, 16>(metric);
  if constexpr (sizeof(T) == 4) {  // float64 is for checking: one fixed shape is enough, and compiles sooner
    if (is(1, 16, 16)) return slot_kernels_for<T, NV, 1, 16, 16>(metric);
    if (is(1, 8, 8)) return slot_kernels_for<T, NV, 1, 8, 8>(metric);
    if (is(4, 4, 4)) return slot_kernels_for<T, NV, 4, 4, 4>(metric);
  }
  return slot_kernels_for<T, NV, 0, 0, 0>(metric);
}

// Those of pairs, for the forward pass.
template <class T>
struct PairKernels {
  void (*votes)(const VoteShape&, const Pair*, const Pair*, const T*, const T*, const T*, T*, T*, T*);
  void (*uniform)(const VoteShape&, int64_t, const Pair*, const Pair* const*, T*);
};

template <class T, int NV, int Rows, int Inner, int Outer>
PairKernels<T> pair_kernels_for(Metric metric) {
  return {metric == Metric::dot ? slot_votes<T, NV, Rows, Inner, Outer, Metric::dot, false, Pair>
                                : slot_votes<T, NV, 0, 0, 0, Metric::euclidean, false, Pair>,
          uniform_sums<T, NV, Rows, Inner, Outer, Pair>};
}

// `shape` counts pairs.
template <class T, int NV>
PairKernels<T> choose_pair_kernels(const VoteShape& shape, Metric metric) {
  const auto is = [&](int64_t rows, int64_t inner, int64_t outer) {
    return shape.rows == rows && shape.inner == inner && shape.outer == outer;
  };
  if (is(1, 4, 16)) return pair_kernels_for<T, NV, 1, 4, 16>(metric);
  if (is(1, 8, 16)) return pair_kernels_for<T, NV, 1, 8, 16>(metric);
  if (is(1, 4, 8)) return pair_kernels_for<T, NV, 1, 4, 8>(metric);
  if (is(4, 2, 4)) return pair_kernels_for<T, NV, 4, 2, 4>(metric);
  return pair_kernels_for<T, NV, 0, 0, 0>(metric);
}

}  // namespace torchcaps
