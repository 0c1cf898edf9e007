// From the C entry points to the kernels: which tile width serves a problem.
#pragma once
#include "softmax_backward.h"
#include "softmax_child.h"
#include "softmax_few.h"
#include "softmax_forward.h"
#include "softmax_shared.h"

namespace torchcaps {

// Runs body(plan) with one vector of samples per tile where more would only be padding, otherwise with two.
template <class T, class Body>
int with_softmax_plan(const Votes<T>* votes, const SoftmaxOptions* options, int threads, Body&& body) {
  return guarded([&] {
    require(votes && options);
    check(*votes);
    if (sizeof(T) == 4 && votes->examples * votes->windows <= Simd<T>::width)  // float64 is for checking
      body(SoftmaxPlan<T, 1>(*votes, *options, threads));
    else
      body(SoftmaxPlan<T, 2>(*votes, *options, threads));
  });
}

template <class T>
int softmax_forward(const Votes<T>* votes, const SoftmaxOptions* options, const T* logits, T* out, T* sums, T* masses,
                    int threads) {
  if (votes && options && goes_by_child(*options, logits))
    return guarded([&] { softmax_child_forward(*votes, *options, logits, out, sums, masses, threads); });
  if (votes && options && SoftmaxFew<T>::takes(*votes))
    return guarded([&] {
      check(*votes);
      SoftmaxFew<T>(SoftmaxPlan<T, 1>(*votes, *options, threads)).run(out, sums, masses);
    });
  return with_softmax_plan(votes, options, threads, [&](const auto& plan) {
    if (SoftmaxShared shared(plan); shared.takes()) return shared.forward(out, sums);
    SoftmaxForward(plan).run(out, sums, masses);
  });
}

template <class T>
int softmax_couplings(const Votes<T>* votes, const SoftmaxOptions* options, const T* logits, const T* sums,
                      const T* masses, int64_t iteration, T* couplings, int threads) {
  if (votes && options && goes_by_child(*options, logits))
    return guarded([&] {
      softmax_child_couplings(*votes, *options, logits, sums, masses, iteration, couplings, threads);
    });
  return with_softmax_plan(votes, options, threads, [&](const auto& plan) {
    require(iteration >= 0 && iteration < plan.options.iterations);
    SoftmaxForward(plan).couplings(iteration, sums, masses, couplings);
  });
}

template <class T>
int softmax_backward(const Votes<T>* votes, const SoftmaxOptions* options, const T* logits, const T* sums,
                     const T* masses, const T* grad_out, T* grad_poses, T* grad_weight, T* grad_bias,
                     T* grad_activations, T* grad_logits, T* grad_queries, int threads) {
  const SoftmaxGradients<T> gradients{grad_poses, grad_weight, grad_bias, grad_activations, grad_queries};
  if (votes && options && goes_by_child(*options, logits))
    return guarded([&] {
      softmax_child_backward(*votes, *options, logits, sums, masses, grad_out, gradients, grad_logits, threads);
    });
  return with_softmax_plan(votes, options, threads, [&](const auto& plan) {
    if (SoftmaxShared shared(plan); shared.takes())
      return shared.backward(sums, grad_out, gradients);
    SoftmaxBackward(plan, sums, masses, grad_out).run(gradients);
  });
}

}  // namespace torchcaps

// The three entry points of one floating-point type. `logits` are the initial ones, (B, S, N, J), or null.
#define TORCHCAPS_SOFTMAX_ROUTING(T, ending)                                                                       \
  TORCHCAPS_EXPORT int torchcaps_softmax_forward_##ending(                                                         \
      const torchcaps::Votes<T>* votes, const torchcaps::SoftmaxOptions* options, const T* logits, T* out, T* sums, \
      T* masses, int threads) {                                                                                    \
    return torchcaps::softmax_forward(votes, options, logits, out, sums, masses, threads);                         \
  }                                                                                                                \
  TORCHCAPS_EXPORT int torchcaps_softmax_couplings_##ending(                                                       \
      const torchcaps::Votes<T>* votes, const torchcaps::SoftmaxOptions* options, const T* logits, const T* sums,  \
      const T* masses, int64_t iteration, T* couplings, int threads) {                                             \
    return torchcaps::softmax_couplings(votes, options, logits, sums, masses, iteration, couplings, threads);      \
  }                                                                                                                \
  TORCHCAPS_EXPORT int torchcaps_softmax_backward_##ending(                                                        \
      const torchcaps::Votes<T>* votes, const torchcaps::SoftmaxOptions* options, const T* logits, const T* sums,  \
      const T* masses, const T* grad_out, T* grad_poses, T* grad_weight, T* grad_bias, T* grad_activations,        \
      T* grad_logits, T* grad_queries, int threads) {                                                              \
    return torchcaps::softmax_backward(votes, options, logits, sums, masses, grad_out, grad_poses, grad_weight,    \
                                       grad_bias, grad_activations, grad_logits, grad_queries, threads);           \
  }
