// The step in which softmax routings differ: from weighted sums to the next query, and to the output.
//
// Everything here works on one tile: an array [parent][entry][lane] in which a lane is a sample. It runs once
// per iteration and tile, so clarity comes before speed.
#pragma once
#include <algorithm>
#include <cmath>

#include "simd.h"
#include "softmax_options.h"

namespace torchcaps {

template <class T>
class SoftmaxUpdate {
 public:
  // `lanes` samples side by side; `parents` vectors of `size` entries.
  SoftmaxUpdate(const SoftmaxOptions& options, int64_t parents, int64_t size, int64_t lanes)
      : options_(options), parents_(parents), size_(size), lanes_(lanes), k_(T(options.squash_k)) {}

  bool uses_mass() const { return options_.algorithm == kmeans_euclidean; }
  // Dynamic routing adds to its query, the others replace it.
  bool accumulates() const { return is_dynamic(options_.algorithm); }

  // query of iteration t + 1 from the sums of iteration t; `query` holds that of iteration t.
  void next_query(int64_t t, const T* sums, const T* mass, T* query) const {
    for_each_vector([&](int64_t first, int64_t vector) {
      if (options_.algorithm == attention_routing) return normed_query(sums + first, query + first);
      const T scale = query_scale(t, sums + first, mass, vector);
      for (int64_t d = 0; d < size_; d++) {
        T& q = query[first + d * lanes_];
        q = (accumulates() ? q : T(0)) + sums[first + d * lanes_] * scale;
      }
    });
  }

  // Gradient of the sums (and masses) of iteration t from the gradient of the queries that used them.
  void next_query_backward(int64_t t, const T* sums, const T* mass, const T* grad_query, T* grad_sums,
                           T* grad_mass) const {
    for_each_vector([&](int64_t first, int64_t vector) {
      switch (options_.algorithm) {
        case dynamic_routing:
        case max_min_routing:
          squash_backward(sums + first, grad_query + first, grad_sums + first);
          break;
        case kmeans_dot:
          normalise_backward(sums + first, grad_query + first, T(options_.inverse_temperature), grad_sums + first);
          break;
        case entropy_routing:
          normalise_backward(sums + first, grad_query + first, T(1 / options_.alphas[t]), grad_sums + first);
          break;
        case kmeans_euclidean:
          mean_backward(sums + first, mass[vector], grad_query + first, grad_sums + first, grad_mass[vector]);
          break;
        case attention_routing:
          normed_query_backward(sums + first, grad_query + first, grad_sums + first);
          break;
        case linear_routing:
          for (int64_t d = 0; d < size_; d++)
            grad_sums[first + d * lanes_] = T(options_.inverse_temperature) * grad_query[first + d * lanes_];
          break;
      }
    });
  }

  void output(const T* sums, const T* mass, T* out) const {
    if (tells_sums()) return void(std::copy_n(sums, parents_ * size_ * lanes_, out));
    if (options_.algorithm == entropy_routing) return largest_norm_output(sums, out);
    for_each_vector([&](int64_t first, int64_t vector) {
      const T shrink = uses_mass() ? inverse_mass(mass[vector]) : T(1);
      const T length = norm(sums + first, shrink);
      const T scale = length / (k_ + length * length) * shrink;
      for (int64_t d = 0; d < size_; d++) out[first + d * lanes_] = sums[first + d * lanes_] * scale;
    });
  }

  // `centre` is room for one vector per lane: (size, lanes).
  void output_backward(const T* sums, const T* mass, const T* grad_out, T* grad_sums, T* grad_mass,
                       T* centre) const {
    if (tells_sums()) return void(std::copy_n(grad_out, parents_ * size_ * lanes_, grad_sums));
    if (options_.algorithm == entropy_routing) return largest_norm_backward(sums, grad_out, grad_sums);
    for_each_vector([&](int64_t first, int64_t vector) {
      if (!uses_mass()) return squash_backward(sums + first, grad_out + first, grad_sums + first);
      T* const grad_centre = grad_sums + first;  // replaced in place by the gradient of the sums
      const T inverse = inverse_mass(mass[vector]);
      for (int64_t d = 0; d < size_; d++) centre[d * lanes_] = sums[first + d * lanes_] * inverse;
      squash_backward(centre, grad_out + first, grad_centre);
      mean_backward(sums + first, mass[vector], grad_centre, grad_sums + first, grad_mass[vector]);
    });
  }

 private:
  // Whether the sums themselves are the output, and what becomes of them is left to the caller.
  bool tells_sums() const { return options_.algorithm == attention_routing || options_.algorithm == linear_routing; }

  // body(offset of the first entry, number of the vector) for every parent and lane.
  template <class Body>
  void for_each_vector(Body&& body) const {
    for (int64_t j = 0; j < parents_; j++)
      for (int64_t lane = 0; lane < lanes_; lane++) body(j * size_ * lanes_ + lane, j * lanes_ + lane);
  }

  T dot(const T* a, const T* b) const {
    T total = 0;
    for (int64_t d = 0; d < size_; d++) total += a[d * lanes_] * b[d * lanes_];
    return total;
  }
  // |scale s|, scaled before it is squared: the sums of a parent with little mass are as small as its mass.
  T norm(const T* s, T scale = 1) const {
    T total = 0;
    for (int64_t d = 0; d < size_; d++) total += (scale * s[d * lanes_]) * (scale * s[d * lanes_]);
    return std::sqrt(total);
  }

  // A parent without mass has centre 0 and no gradient; below the bound its gradients would overflow.
  static T inverse_mass(T mass) { return mass > smallest_mass ? T(1) / mass : T(0); }
  static constexpr T smallest_mass = sizeof(T) == 4 ? T(1e-30) : T(1e-290);
  // A vector that is not longer has no direction: its square underflows, and 1 / |s| would carry gradients away.
  static constexpr T shortest = sizeof(T) == 4 ? T(1e-19) : T(1e-150);

  T query_scale(int64_t t, const T* sums, const T* mass, int64_t vector) const {
    if (options_.algorithm == kmeans_euclidean) return inverse_mass(mass[vector]);
    if (options_.algorithm == linear_routing) return T(options_.inverse_temperature);
    const T length = norm(sums);
    if (is_dynamic(options_.algorithm)) return length / (k_ + length * length);
    if (length <= shortest) return 0;
    return T(options_.algorithm == kmeans_dot ? options_.inverse_temperature : 1 / options_.alphas[t]) / length;
  }

  // v = s f(|s|) with f(n) = n / (k + n^2): ds = f g + (s.g) f'(n) / n s, and f'(n) = (k - n^2) / (k + n^2)^2.
  void squash_backward(const T* s, const T* grad, T* grad_s) const {
    const T length = norm(s), square = length * length;
    const T scale = length / (k_ + square);
    const T slope = (k_ - square) / (k_ + square) / (k_ + square);
    const T along = length > 0 ? dot(s, grad) / length * slope : T(0);
    for (int64_t d = 0; d < size_; d++) grad_s[d * lanes_] = scale * grad[d * lanes_] + along * s[d * lanes_];
  }

  // v = scale s / |s|: ds = scale (g - (v.g) v / scale^2) / |s|, and 0 where s has no direction.
  void normalise_backward(const T* s, const T* grad, T scale, T* grad_s) const {
    const T length = norm(s);
    const T inverse = length > shortest ? T(1) / length : T(0);
    const T along = dot(s, grad) * inverse * inverse;
    for (int64_t d = 0; d < size_; d++)
      grad_s[d * lanes_] = scale * inverse * (grad[d * lanes_] - along * s[d * lanes_]);
  }

  // v = s / m: ds = g / m, dm = -(s.g) / m^2. `grad` and `grad_s` may be the same.
  void mean_backward(const T* s, T mass, const T* grad, T* grad_s, T& grad_mass) const {
    const T inverse = inverse_mass(mass);
    grad_mass = -dot(s, grad) * inverse * inverse;
    for (int64_t d = 0; d < size_; d++) grad_s[d * lanes_] = grad[d * lanes_] * inverse;
  }

  // Mean and inverse deviation of the entries of a vector.
  struct Spread {
    T mean, inverse;
  };
  Spread spread(const T* s) const {
    T mean = 0, square = 0;
    for (int64_t d = 0; d < size_; d++) mean += s[d * lanes_] / T(size_);
    for (int64_t d = 0; d < size_; d++) square += (s[d * lanes_] - mean) * (s[d * lanes_] - mean) / T(size_);
    return {mean, T(1) / std::sqrt(square + T(options_.epsilon))};
  }
  T affine_scale(int64_t d) const { return options_.affine ? T(options_.affine[d]) : T(1); }
  T affine_shift(int64_t d) const { return options_.affine ? T(options_.affine[size_ + d]) : T(0); }

  // q = (scale n + shift) / sqrt(D) with n = (s - mean) / deviation.
  void normed_query(const T* s, T* query) const {
    const Spread of = spread(s);
    const T root = std::sqrt(T(size_));
    for (int64_t d = 0; d < size_; d++)
      query[d * lanes_] = (affine_scale(d) * ((s[d * lanes_] - of.mean) * of.inverse) + affine_shift(d)) / root;
  }

  // With g the gradient of n: ds = (g - mean(g) - n mean(g n)) / deviation.
  void normed_query_backward(const T* s, const T* grad, T* grad_s) const {
    const Spread of = spread(s);
    const T root = std::sqrt(T(size_));
    T mean = 0, along = 0;
    for (int64_t d = 0; d < size_; d++) {
      const T g = affine_scale(d) * grad[d * lanes_] / root;
      mean += g / T(size_);
      along += g * ((s[d * lanes_] - of.mean) * of.inverse) / T(size_);
    }
    for (int64_t d = 0; d < size_; d++) {
      const T n = (s[d * lanes_] - of.mean) * of.inverse;
      grad_s[d * lanes_] = (affine_scale(d) * grad[d * lanes_] / root - mean - n * along) * of.inverse;
    }
  }

  T largest_norm(const T* sums, int64_t lane) const {
    T largest = 0;
    for (int64_t j = 0; j < parents_; j++) largest = std::max(largest, norm(sums + j * size_ * lanes_ + lane));
    return largest;
  }

  // w_j s_j of the entropy routing: |S_j| / (1 + max_k |S_k|) S_j / |S_j| = S_j / (1 + max_k |S_k|).
  void largest_norm_output(const T* sums, T* out) const {
    for (int64_t lane = 0; lane < lanes_; lane++) {
      const T scale = T(1) / (T(1) + largest_norm(sums, lane));
      for (int64_t i = 0; i < parents_ * size_; i++) out[i * lanes_ + lane] = sums[i * lanes_ + lane] * scale;
    }
  }

  // The longest parent k divides all outputs: dS_k gets -sum_j <out_j, g_j> / (1 + |S_k|) S_k / |S_k| besides.
  // Parents of equal length share that part.
  void largest_norm_backward(const T* sums, const T* grad_out, T* grad_sums) const {
    for (int64_t lane = 0; lane < lanes_; lane++) {
      const T largest = largest_norm(sums, lane);
      const T scale = T(1) / (T(1) + largest);
      T agreement = 0;
      for (int64_t i = 0; i < parents_ * size_; i++) {
        agreement += sums[i * lanes_ + lane] * grad_out[i * lanes_ + lane];
        grad_sums[i * lanes_ + lane] = grad_out[i * lanes_ + lane] * scale;
      }
      if (largest == 0) continue;
      T ties = 0;
      for (int64_t j = 0; j < parents_; j++) ties += norm(sums + j * size_ * lanes_ + lane) == largest;
      const T pull = agreement * scale * scale / (largest * ties);
      for (int64_t j = 0; j < parents_; j++) {
        const int64_t first = j * size_ * lanes_ + lane;
        if (norm(sums + first) != largest) continue;
        for (int64_t d = 0; d < size_; d++) grad_sums[first + d * lanes_] -= pull * sums[first + d * lanes_];
      }
    }
  }

  const SoftmaxOptions& options_;
  const int64_t parents_, size_, lanes_;
  const T k_;
};

}  // namespace torchcaps
