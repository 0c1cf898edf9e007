// EM routing on votes that are never formed: options and what is remembered of an iteration.
//
// A window remembers (for the backward and for couplings) one record per register of parents:
//
//     mean[D]  variance[D]  logit  mass
//
// where a = sigmoid(logit) for the activations "mdl" and "entropy", a = exp(logit) for "mixing".
#pragma once
#include <cstdint>

#include "child_context.h"

namespace torchcaps {

// Filled by Python through ctypes: field order and types are part of the ABI.
template <class T>
struct EmOptions {
  enum Activation : int64_t { mdl = 0, mixing = 1, entropy = 2 };

  int64_t iterations;       // T
  int64_t competition;      // a CompetitionKind
  int64_t activation;
  int64_t scale_by_mass;    // costs are divided by the mean mass that a parent has at the start
  int64_t detach;           // couplings are constants for the gradient
  double variance_epsilon;
  double damping;           // mean = (1 - damping) new + damping old, in [0, 1)
  const double* sharpness;  // (T): lambda_t * kappa
  const double* inverse_temperature;  // (T): of the E-step that follows M-step t; the last serves couplings alone
  const T* beta_a;          // (J)
  const T* beta_u;          // (J)
  const T* initial_logits;  // (B, S, N, J): the first couplings are their softmax; null: equal shares
};

namespace em {

using namespace by_child;

constexpr double smallest_mass = 1e-8;  // sums are divided by max(mass, smallest_mass)

// Registers of one record, and where the records of one window begin: `vectors` of them.
template <class T>
inline int64_t record_registers(const Layout<T>& layout) {
  return 2 * int64_t(layout.size) + 2;
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
  Vec<T>& mass() const { return start[2 * size + 1]; }
};

}  // namespace em
}  // namespace torchcaps
