// From the gradients of votes to the gradients of poses, weights and biases.
//
// Here the lanes are entries of a vote (or of a pose), not samples: the weight gradient is a sum over samples.
// The gradient of a vote is a short sum of known vectors, one per term, with a coefficient per child and parent:
//
//     d vote_ij = sum over terms m of coefficient_mij * vector_mj
#pragma once
#include "simd.h"
#include "softmax_tile.h"

namespace torchcaps {

inline int64_t padded(int64_t size, int64_t width) { return (size + width - 1) / width * width; }

// Adds `vec` to the first `count` entries at `to`, all of them when count is at least the width.
template <class T>
inline void add_entries(T* to, Vec<T> vec, int64_t count) {
  if (count >= Simd<T>::width) return store(to, load(to) + vec);
  for (int64_t i = 0; i < count; i++) to[i] += vec[i];
}

// Runs body(tag of 2 or 1, first vector) over `count` vectors, in pairs as long as there are two.
template <class Body>
inline void in_pairs(int64_t count, Body&& body) {
  int64_t v = 0;
  for (; v + 2 <= count; v += 2) body(std::integral_constant<int, 2>(), v);
  if (v < count) body(std::integral_constant<int, 1>(), v);
}

// Gradients of the votes of `Slots` slots for one parent, in one tile.
//   vectors:      [lane][term][size], size a multiple of the width
//   first:        [slot] -> [lane], coefficient of term 0
//   coefficients: [slot] -> [term - 1][stride of a term], coefficients of the other terms by lane
//   gradients:    [slot] -> [lane][size]
template <class T, int Slots>
void vote_gradients(int64_t lanes, int64_t terms, int64_t size, int64_t stride, const T* vectors,
                    const T* const* first, const T* const* coefficients, T* const* gradients) {
  constexpr int width = Simd<T>::width;
  for (int64_t lane = 0; lane < lanes; lane++) {
    const T* const vector = vectors + lane * terms * size;
    in_pairs(size / width, [&](auto tag, int64_t v) {
      constexpr int count = decltype(tag)::value;
      Vec<T> total[Slots][count];
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) total[s][i] = load(vector + (v + i) * width) * first[s][lane];
      for (int64_t m = 1; m < terms; m++) {
        Vec<T> x[count];
        for (int i = 0; i < count; i++) x[i] = load(vector + m * size + (v + i) * width);
        for (int s = 0; s < Slots; s++) {
          const T c = coefficients[s][(m - 1) * stride + lane];
          for (int i = 0; i < count; i++) total[s][i] += x[i] * c;
        }
      }
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) store(gradients[s] + lane * size + (v + i) * width, total[s][i]);
    });
  }
}

// One group of tiles for one slot and parent.
//   poses:     of the slot in the first tile, [pose entry][lane]; the next tile is `pose_stride` further
//   gradients: [tile][lane][row][padded outer]
template <class T>
struct SlotGradients {
  const VoteShape& shape;
  int64_t tiles, lanes;
  const T* poses;
  int64_t pose_stride;
  const T* gradients;

  static constexpr int width = Simd<T>::width;
  int64_t padded_outer() const { return padded(shape.outer, width); }
  int64_t padded_inner() const { return padded(shape.inner, width); }

  // weight_ke += sum over samples and rows of pose_rk gradient_re.
  void add_weight(T* weight) const {
    int64_t k = 0;
    for (; k + 4 <= shape.inner; k += 4) add_weight_rows<4>(k, weight);
    for (; k < shape.inner; k++) add_weight_rows<1>(k, weight);
  }

  // bias_re += sum over samples of gradient_re.
  void add_bias(T* bias) const {
    const int64_t stride = shape.rows * padded_outer();
    for (int64_t row = 0; row < shape.rows; row++)
      for (int64_t v = 0; v < padded_outer(); v += width) {
        Vec<T> total = {};
        for (int64_t sample = 0; sample < tiles * lanes; sample++)
          total += load(gradients + sample * stride + row * padded_outer() + v);
        add_entries(bias + row * shape.outer + v, total, shape.outer - v);
      }
  }

  // pose_rk += sum over e of gradient_re weight_ke, for every sample. `turned` is the weight as [e][padded k];
  // pose_gradients [sample][row][padded inner].
  void add_poses(const T* turned, T* pose_gradients) const {
    in_pairs(padded_inner() / width, [&](auto tag, int64_t v) {
      constexpr int count = decltype(tag)::value;
      for (int64_t sample = 0; sample < tiles * lanes; sample += 8 / count)
        for (int64_t row = 0; row < shape.rows; row++)
          add_pose_block<8 / count, count>(sample, row, v, turned, pose_gradients);
    });
  }

  // gradient_re += coefficient vote_re, the votes being formed anew (euclidean metric only). `filled` is the
  // weight as [k][padded e], `base` the bias and offset as [row][padded e]; coefficients by [tile][lane].
  void add_votes(const T* filled, const T* base, const T* coefficients, T* grown) const {
    const int64_t size = shape.rows * padded_outer();
    for (int64_t sample = 0; sample < tiles * lanes; sample++) {
      const T* const pose = poses + sample / lanes * pose_stride + sample % lanes;
      for (int64_t row = 0; row < shape.rows; row++)
        for (int64_t v = 0; v < padded_outer(); v += width) {
          Vec<T> vote = load(base + row * padded_outer() + v);
          for (int64_t k = 0; k < shape.inner; k++)
            vote += load(filled + k * padded_outer() + v) * pose[(row * shape.inner + k) * lanes];
          T* const to = grown + sample * size + row * padded_outer() + v;
          store(to, load(to) + vote * coefficients[sample]);
        }
    }
  }

 private:
  template <int Count>
  void add_weight_rows(int64_t first, T* weight) const {
    in_pairs(padded_outer() / width, [&](auto tag, int64_t v) {
      constexpr int vectors = decltype(tag)::value;
      Vec<T> total[Count][vectors] = {};
      const T* gradient = gradients + v * width;
      for (int64_t tile = 0; tile < tiles; tile++)
        for (int64_t lane = 0; lane < lanes; lane++)
          for (int64_t row = 0; row < shape.rows; row++) {
            const T* const pose = poses + tile * pose_stride + (row * shape.inner + first) * lanes + lane;
            Vec<T> x[vectors];
            for (int i = 0; i < vectors; i++) x[i] = load(gradient + i * width);
            for (int k = 0; k < Count; k++)
              for (int i = 0; i < vectors; i++) total[k][i] += x[i] * pose[k * lanes];
            gradient += padded_outer();
          }
      for (int k = 0; k < Count; k++)
        for (int i = 0; i < vectors; i++)
          add_entries(weight + (first + k) * shape.outer + (v + i) * width, total[k][i], shape.outer - (v + i) * width);
    });
  }

  template <int Samples, int Count>
  void add_pose_block(int64_t first, int64_t row, int64_t v, const T* turned, T* pose_gradients) const {
    const int64_t stride = shape.rows * padded_outer(), pose_step = shape.rows * padded_inner();
    const T* const gradient = gradients + first * stride + row * padded_outer();
    T* const to = pose_gradients + first * pose_step + row * padded_inner() + v * width;
    Vec<T> total[Samples][Count];
    for (int s = 0; s < Samples; s++)
      for (int i = 0; i < Count; i++) total[s][i] = load(to + s * pose_step + i * width);
    for (int64_t e = 0; e < shape.outer; e++) {
      Vec<T> w[Count];
      for (int i = 0; i < Count; i++) w[i] = load(turned + e * padded_inner() + (v + i) * width);
      for (int s = 0; s < Samples; s++)
        for (int i = 0; i < Count; i++) total[s][i] += w[i] * gradient[s * stride + e];
    }
    for (int s = 0; s < Samples; s++)
      for (int i = 0; i < Count; i++) store(to + s * pose_step + i * width, total[s][i]);
  }
};

}  // namespace torchcaps
