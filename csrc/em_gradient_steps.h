// The inner steps of the backward pass of EM routing, on one block of children.
#pragma once
#include <type_traits>

#include "em.h"

namespace torchcaps {
namespace em {

// Gradient of a vote: the sum over terms of coefficient * (slope * delta + height), delta measured from the mean
// of iteration 0. Term 0 is the M-step of iteration 0, terms 2t-1 and 2t are M-step and E-step of iteration t.
constexpr int num_terms(int64_t iterations) { return int(2 * iterations - 1); }

// Calls body(constant number of terms), 0 where the compiler need not know it: more than three iterations.
template <class Body>
inline void with_terms(int terms, Body&& body) {
  switch (terms) {
    case num_terms(1): return body(std::integral_constant<int, num_terms(1)>());
    case num_terms(2): return body(std::integral_constant<int, num_terms(2)>());
    case num_terms(3): return body(std::integral_constant<int, num_terms(3)>());
    default: return body(std::integral_constant<int, 0>());
  }
}

// What an M-step gives back to a weight r = R a: constant + sum over entries of (linear + quadratic d) d, and for heinsen
// the gradient of the logit times what the child is worth.
template <class T>
struct Response {
  Vec<T>* linear;      // [vectors][D]
  Vec<T>* quadratic;   // [vectors][D]
  Vec<T>* difference;  // [vectors][D]: d is measured from the mean of iteration t, votes from that of t - 1
  Vec<T>* constant;    // [vectors]
  Vec<T>* logit;       // [vectors]: the gradient of the logit

  static int64_t registers(const Layout<T>& layout) { return layout.vectors * (3 * layout.size + 2); }
  Response(Vec<T>* start, const Layout<T>& layout)
      : linear(start), quadratic(start + layout.entries()), difference(quadratic + layout.entries()),
        constant(difference + layout.entries()), logit(constant + layout.vectors) {}
};

// Gradients that arrive at the Gaussians of one window.
template <class T>
struct Arriving {
  Vec<T>* mean;        // [vectors][D]
  Vec<T>* variance;    // [vectors][D]
  Vec<T>* log_weight;  // [vectors]
  Vec<T>* logit;       // [vectors]: from outside, at the last iteration alone

  static int64_t registers(const Layout<T>& layout) { return layout.vectors * (2 * layout.size + 2); }
  Arriving(Vec<T>* start, const Layout<T>& layout)
      : mean(start), variance(start + layout.entries()), log_weight(variance + layout.entries()),
        logit(log_weight + layout.vectors) {}
};

// response[Block][vectors] of the block's children in one window.
template <int Block, class T>
inline void respond(const Vec<T>* delta, const Response<T>& window, int vectors, int size, Vec<T>* response) {
  const int stride = vectors * size;
  for (int v = 0; v < vectors; v++) {
    Vec<T> total[Block];
    for (int m = 0; m < Block; m++) total[m] = window.constant[v];
    for (int h = v * size; h < (v + 1) * size; h++) {
      const Vec<T> linear = window.linear[h], quadratic = window.quadratic[h], difference = window.difference[h];
      for (int m = 0; m < Block; m++) {
        const Vec<T> d = delta[m * stride + h] + difference;
        total[m] += (linear + quadratic * d) * d;
      }
    }
    for (int m = 0; m < Block; m++) response[m * vectors + v] = total[m];
  }
}

// delta[Block][vectors][D] becomes the gradient that an M-step alone gives to the votes, whose weights are R a.
template <int Block, class T>
inline void m_step_gradients(const Vec<T>* coupling, const T* activations, const Response<T>& window, int vectors,
                             int size, Vec<T>* delta) {
  const int stride = vectors * size;
  for (int v = 0; v < vectors; v++) {
    for (int h = v * size; h < (v + 1) * size; h++) {
      const Vec<T> linear = window.linear[h], slope = T(2) * window.quadratic[h], difference = window.difference[h];
      for (int m = 0; m < Block; m++) {
        const Vec<T> d = delta[m * stride + h] + difference;
        delta[m * stride + h] = coupling[m * vectors + v] * activations[m] * (linear + slope * d);
      }
    }
  }
}

// delta[Block][vectors][D] becomes the gradient of the votes. `lines` is [vectors][D][terms] of (slope, height),
// `coefficients[m]` is [vectors][terms - 1], `first` the coefficients of term 0, [Block][vectors]. Adds twice the
// response of the first M-step, without its constant, to doubled[Block].
template <int Block, int Terms, class T>
inline void vote_gradients(const Vec<T>* lines, const Vec<T>* const* coefficients, const Vec<T>* first, int terms,
                           int vectors, int size, Vec<T>* delta, Vec<T>* doubled) {
  const int count = Terms ? Terms : terms, stride = vectors * size;
  for (int v = 0; v < vectors; v++) {
    const Vec<T>* coefficient[Block];
    Vec<T> response[Block], weight[Block];
    for (int m = 0; m < Block; m++) {
      weight[m] = first[m * vectors + v];
      coefficient[m] = coefficients[m] + v * (count - 1);
      response[m] = doubled[m];
    }
    for (int h = v * size; h < (v + 1) * size; h++) {
      const Vec<T>* line = lines + h * 2 * count;
      Vec<T> d[Block], total[Block];
      for (int m = 0; m < Block; m++) {
        d[m] = delta[m * stride + h];
        const Vec<T> value = line[0] * d[m] + line[1];
        response[m] += (value + line[1]) * d[m];
        total[m] = value * weight[m];
      }
      for (int u = 1; u < count; u++)
        for (int m = 0; m < Block; m++)
          total[m] += coefficient[m][u - 1] * (line[2 * u] * d[m] + line[2 * u + 1]);
      for (int m = 0; m < Block; m++) delta[m * stride + h] = total[m];
    }
    for (int m = 0; m < Block; m++) doubled[m] = response[m];
  }
}

}  // namespace em
}  // namespace torchcaps
