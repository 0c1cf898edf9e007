// What the backward pass of the EM family is given, and the memory that it works in.
#pragma once
#include "child_gradients.h"
#include "em_context.h"
#include "em_gradient_steps.h"
#include "em_mapping_gradient.h"

namespace torchcaps {
namespace em {

template <class T>
struct Gradients {
  T* poses;        // (B, I, R * K)
  T* activations;  // (B, I)
  T* weight;       // (transforms, J, K, D / R)
  T* bias;         // (transforms, J, D), or null
  T* beta_a;       // (J), or null like the betas
  T* beta_u;       // (J)
  T* worth;        // (C, J), or null like the worth
  T* threshold;    // (B, S, J)
  T* logits;       // (B, S, N, J) of the initial logits, or null where nobody asks for it
};

// Examples that are worked on together; their windows are numbered through.
template <class T>
struct BackwardTile {
  Vec<T>* gaussians;     // [windows]: of iteration t - 1; in the last pass their means are those of iteration 0
  Vec<T>* arriving;      // [windows]: at the Gaussians of iteration t
  Vec<T>* responses;     // [windows]: of iteration t
  Vec<T>* lines;         // [windows][vectors][D][terms][2]
  Vec<T>* coefficients;  // [windows][N][vectors][terms - 1]
  Vec<T>* sums;          // [pieces][windows]: over the children of a piece
};

// What is gathered over many examples, block by block or piece by piece.
template <class T, class Shape>
struct BackwardPart {
  Vec<T>* beta;   // [2][vectors]: gradients of beta_a, beta_u
  Vec<T>* worth;  // [C][vectors]: gradients of the worth, or null
  Collected<T, Shape> collected;
};

// The scratch memory of one thread.
template <class T, class Shape>
struct BackwardWorker {
  Vec<T>* records[3];  // of one window: iterations t, t - 1 and 0
  Vec<T>* totals;      // [2][vectors]: what parents share, of the window at hand
  Vec<T>* pose;        // [unit][R * K]: gradients of the poses at hand, lanes not yet summed
  Responses<T> at_hand;
  Bench<T> bench;
  BackwardPart<T, Shape>* part;  // where it gathers
};

template <class T, class Shape>
struct BackwardCall {
  Context<T, Shape> context;
  const MappingGradient<T> gradient;
  const bool detached;  // couplings are constants
  const int terms;      // of the gradient of a vote
  const T *const state, *const out_poses, *const out_activations, *const out_logits;
  const Gradients<T> gradients;

  BackwardCall(const Votes<T>& votes, const EmOptions<T>& options, int threads, const T* state, const T* out_poses,
               const T* out_activations, const T* out_logits, const Gradients<T>& gradients)
      : context(votes, options, threads),
        gradient(context.mapping, options, context.layout, context.inverse_mass),
        detached(options.detach && options.iterations > 1),
        terms(num_terms(detached ? 1 : options.iterations)),
        state(state),
        out_poses(out_poses),
        out_activations(out_activations),
        out_logits(out_logits),
        gradients(gradients) {}

  int64_t records() const { return int64_t(context.vectors()) * record_registers(context.layout); }  // of one window
  int64_t coefficients() const { return int64_t(context.vectors()) * (terms - 1); }                  // of one slot
};

}  // namespace em
}  // namespace torchcaps
