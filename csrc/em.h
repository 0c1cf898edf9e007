// EM routing on votes that are never formed: options, layouts and the division of work.
//
// SIMD lanes are parent types: J is padded to `vectors` registers. All per-window quantities lie as
// [window][vector][entry] registers, so that the work on one register of parents touches contiguous memory.
// What a window remembers of an iteration (for the backward and for couplings) is one record per register:
//
//     mean[D]  variance[D]  logit  mass
//
// where a = sigmoid(logit) for the activations "mdl" and "entropy", a = exp(logit) for "mixing".
#pragma once
#include <cstdint>
#include <limits>

#include "simd.h"
#include "votes.h"

namespace torchcaps {

// Filled by Python through ctypes: field order and types are part of the ABI.
template <class T>
struct EmOptions {
  enum Competition : int64_t { window = 0, global = 1, position = 2 };
  enum Activation : int64_t { mdl = 0, mixing = 1, entropy = 2 };

  int64_t iterations;       // T
  int64_t competition;
  int64_t activation;
  int64_t scale_by_mass;    // costs are divided by the mean mass that a parent has at the start
  int64_t detach;           // couplings are constants for the gradient
  double variance_epsilon;
  double damping;           // mean = (1 - damping) new + damping old, in [0, 1)
  const double* sharpness;  // (T): lambda_t * kappa
  const double* inverse_temperature;  // (T): of the E-step that follows M-step t; the last serves couplings alone
  const T* beta_a;          // (J)
  const T* beta_u;          // (J)
};

namespace em {

constexpr double smallest_mass = 1e-8;  // sums are divided by max(mass, smallest_mass)

// Sizes in registers.
template <class T>
struct Layout {
  int vectors;       // registers of parents
  int size;          // D
  int64_t windows;   // S

  explicit Layout(const Votes<T>& votes)
      : vectors(int((votes.parents + Simd<T>::width - 1) / Simd<T>::width)),
        size(int(votes.vote_size())),
        windows(votes.windows) {}

  int64_t entries() const { return int64_t(vectors) * size; }  // registers of one (window, D) quantity
  int64_t record() const { return 2 * int64_t(size) + 2; }     // registers of one record
  // The records of one window: `vectors` of them.
  int64_t record_at(int64_t example, int64_t iteration, int64_t iterations, int64_t window) const {
    return ((example * iterations + iteration) * windows + window) * vectors * record();
  }
};

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

// The workers that share one tile of examples. A worker on its own never waits.
struct Team {
  int rank, size;
  void wait() const {
    if (size > 1) {
#pragma omp barrier
    }
  }
  // The share [first, last) of this worker among `count` equal pieces.
  void share(int64_t count, int64_t& first, int64_t& last) const {
    first = count * rank / size;
    last = count * (rank + 1) / size;
  }
};

}  // namespace em
}  // namespace torchcaps
