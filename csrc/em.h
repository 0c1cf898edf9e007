// The EM family on votes that are never formed: options and what is remembered of an iteration.
//
// A window remembers (for the backward and for couplings) one record per register of parents:
//
//     mean[D]  variance[D]  logit  log_weight  mass
//
// The logits of an E-step are log_weight + log N(vote; mean, variance). Members of the family differ in how these follow
// from the sums of a parent: em_mapping.h.
#pragma once
#include <cstdint>

#include "child_context.h"

namespace torchcaps {

// Filled by Python through ctypes: field order and types are part of the ABI.
template <class T>
struct EmOptions {
  // a = sigmoid(logit), but exp(logit) for mixing and the mass itself for mass
  enum Mapping : int64_t { mdl = 0, mixing = 1, entropy = 2, vb = 3, heinsen = 4, mass = 5 };

  int64_t iterations;       // T
  int64_t competition;      // a CompetitionKind
  int64_t mapping;
  int64_t scale_by_mass;    // costs are divided by the mean mass that a parent has at the start
  int64_t detach;           // couplings are constants for the gradient
  int64_t worth_types;      // C: slot n has the worth of n % C
  double variance_epsilon;
  double damping;           // mean = (1 - damping) new + damping old, in [0, 1)
  double prior_alpha, prior_kappa, prior_psi, prior_nu;  // of vb
  const double* sharpness;  // (T): lambda_t * kappa
  const double* inverse_temperature;  // (T): of the E-step that follows M-step t; the last serves couplings alone
  const T* beta_a;          // (J): of mdl, entropy and vb
  const T* beta_u;          // (J)
  const T* worth;           // (C, J): of heinsen, what a logit gains by what is used of a child
  const T* threshold;       // (B, S, J): of heinsen, the logit of a parent that uses nothing
  const T* initial_logits;  // (B, S, N, J): the first couplings are their softmax; null: equal shares
};

namespace em {

using namespace by_child;

constexpr double smallest_mass = 1e-8;  // sums are divided by max(mass, smallest_mass)

// Registers of one record, and where the records of one window begin: `vectors` of them.
template <class T>
inline int64_t record_registers(const Layout<T>& layout) {
  return 2 * int64_t(layout.size) + 3;
}
template <class T>
inline int64_t record_place(const Layout<T>& layout, int64_t example, int64_t iteration, int64_t iterations,
                            int64_t window) {
  return ((example * iterations + iteration) * layout.windows + window) * layout.vectors * record_registers(layout);
}

// One register of parents of one window, as remembered from an iteration.
template <class T>
struct Record {
  Vec<T>* start;
  int size;
  Vec<T>* mean() const { return start; }
  Vec<T>* variance() const { return start + size; }
  Vec<T>& logit() const { return start[2 * size]; }
  Vec<T>& log_weight() const { return start[2 * size + 1]; }
  Vec<T>& mass() const { return start[2 * size + 2]; }
};

}  // namespace em
}  // namespace torchcaps
