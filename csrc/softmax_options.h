// What distinguishes one softmax routing from another, as Python hands it over.
#pragma once
#include <cstdint>

namespace torchcaps {

// Every softmax routing repeats
//
//     logits_ij = <vote_ij, query_j>            (euclidean: -T |vote_ij - query_j|^2)
//     c_i       = softmax_j(logits_i)           (first iteration: uniform, or of the initial logits)
//     sums_j    = sum_i c_ij vote_ij
//     query_j   = update(sums_j)
//
// and returns output(sums) of the last iteration. Only the update and the output differ.
enum Algorithm : int32_t {
  dynamic_routing = 0,    // query += squash(sums);          output squash(sums)
  kmeans_dot = 1,         // query = T normalise(sums);      output squash(sums)
  kmeans_euclidean = 2,   // query = sums / mass;            output squash(sums / mass)
  entropy_routing = 3,    // query = normalise(sums)/alpha;  output sums / (1 + max_k |sums_k|)
  max_min_routing = 4,    // as dynamic routing, with max-min couplings (max_min.h) in the place of the softmax
  attention_routing = 5,  // query = LayerNorm(sums) / sqrt(D);  output sums
  linear_routing = 6,     // query = T sums;              output sums
};

// Whether queries add up and sums are squashed.
inline bool is_dynamic(int32_t algorithm) { return algorithm == dynamic_routing || algorithm == max_min_routing; }

// Filled by Python through ctypes: field order and types are part of the ABI.
struct SoftmaxOptions {
  int32_t algorithm;
  int32_t iterations;         // number of weighted sums, at least 1
  int32_t leaky;              // an extra parent with logit 0 takes part in the softmax; its share is dropped
  int32_t detach;             // only the last weighted sum carries gradients
  int32_t amend;              // couplings are multiplied by the activations of the children
  int32_t competition;        // a CompetitionKind
  int32_t bfloat16;           // votes may be products of bfloat16 where the processor has these (forward, float32)
  double squash_k;
  double inverse_temperature;
  double epsilon;             // of the LayerNorm (attention only)
  const double* alphas;       // (iterations): alphas[t] enters the couplings of iteration t + 1 (entropy only)
  const double* affine;       // (2, D): scale and shift of the LayerNorm; null: 1 and 0 (attention only)
  const uint8_t* partial;     // (J): 0 = this parent takes no part in the softmax; null: all do
};

// Where the gradients go; those that are not wanted are null. All are overwritten. Queries, (iterations - 1, B * S, J, D):
// of iterations 1 to the last, for whoever has learned how they follow from the sums.
template <class T>
struct SoftmaxGradients {
  T *poses, *weight, *bias, *activations, *queries;
  // Those of iteration t, of which there are `count`.
  T* queries_at(int64_t t, int64_t count) const { return queries ? queries + (t - 1) * count : nullptr; }
};

}  // namespace torchcaps
