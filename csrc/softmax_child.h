// Softmax routings child by child: what softmax_forward.h and softmax_backward.h do not know.
//
// Those take one window at a time, start from equal shares and have a softmax. Here a child is visited with all windows
// that see it, so that windows may compete for it, couplings may be max-min, and logits may be given to start from:
//
//     logits_ij = initial_ij + <vote_ij, query_j>        (dynamic routing, which adds up; the others start from
//                                                         initial_ij and replace it)
//
// What is saved for the backward pass is the same: sums (iterations, B * S, J, D) and masses (iterations, B * S, J).
#pragma once
#include "competition.h"
#include "softmax_options.h"
#include "votes.h"

namespace torchcaps {

// Whether a routing has to be done child by child.
template <class T>
bool goes_by_child(const SoftmaxOptions& options, const T* initial_logits) {
  return initial_logits || options.competition != window_competition || options.algorithm == max_min_routing;
}

template <class T>
void softmax_child_forward(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits, T* out,
                           T* sums, T* masses, int threads);
template <class T>
void softmax_child_couplings(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits,
                             const T* sums, const T* masses, int64_t iteration, T* couplings, int threads);
template <class T>
void softmax_child_backward(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits,
                            const T* sums, const T* masses, const T* grad_out, const SoftmaxGradients<T>& gradients,
                            T* grad_logits, int threads);

}  // namespace torchcaps
