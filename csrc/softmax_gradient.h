// From the gradients of votes to the gradients of poses, weights and biases.
//
// Here the lanes are entries of a vote (or of a pose), not samples: the weight gradient is a sum over samples.
// The gradient of a vote is a short sum of known vectors, one per term, with a coefficient per child and parent:
//
//     d vote_ij = sum over terms m of coefficient_mij * vector_mj
//
// A vote is held as `rows` rows of `padded outer` entries, a pose as `rows` rows of `padded inner` entries.
#pragma once
#include "simd.h"
#include "softmax_tile.h"

namespace torchcaps {

constexpr int64_t padded(int64_t size, int64_t width) { return (size + width - 1) / width * width; }

// How a gradient meets what lies at its place: overwrites it (`stream`: past the caches) or adds to it.
enum class Write { put, stream, add };

// Writes `vec` to the first `count` entries at `to`, all of them when count is at least the width.
template <class T>
inline void put_entries(T* to, Vec<T> vec, int64_t count, Write write) {
  if (count >= Simd<T>::width) {
    if (write == Write::stream) return stream(to, vec);
    return store(to, write == Write::add ? load(to) + vec : vec);
  }
  for (int i = 0; i < Simd<T>::width; i++)
    if (i < count) to[i] = (write == Write::add ? to[i] : T(0)) + vec[i];
}

// Runs body(tag of 2 or 1, first vector) over `count` vectors, in pairs as long as there are two.
template <class Body>
inline __attribute__((always_inline)) void in_pairs(int64_t count, Body&& body) {
  for (int64_t pair = 0; pair < count / 2; pair++) body(std::integral_constant<int, 2>(), 2 * pair);
  if (count % 2) body(std::integral_constant<int, 1>(), count - 1);
}

// What the last sweep knows of one slot and parent, in all tiles of a group.
template <class T>
struct SlotGradients {
  int64_t samples;            // of the group, whole tiles
  const T* poses;             // of the slot in the first tile: [pose entry][lane]
  int64_t pose_stride;        // to the next tile
  const T* vote_gradients;    // [sample][padded vote]
};

// Gradients of the votes of `Slots` neighbouring slots for one parent, in one tile.
//   vectors:      [lane][term][padded vote]
//   factors:      coefficients of term 0, [slot][lane]
//   coefficients: of the other terms, [slot (at slot_stride)][term - 1][lane]
//   gradients:    [slot (at gradient_stride)][lane][padded vote]
template <class T, int NV, int Rows, int Outer, int Slots>
void vote_gradients(const VoteShape& shape, int64_t terms, const T* vectors, const T* factors, const T* coefficients,
                    int64_t slot_stride, T* gradients, int64_t gradient_stride) {
  constexpr int lanes = Lanes<T, NV>::count, width = Simd<T>::width;
  const int64_t size = (Rows ? Rows : shape.rows) * padded(Outer ? Outer : shape.outer, width);
  const T* coefficient[Slots];
  for (int s = 0; s < Slots; s++) coefficient[s] = coefficients + s * slot_stride;
  for (int64_t lane = 0; lane < lanes; lane++) {
    const T* const vector = vectors + lane * terms * size;
    in_pairs(size / width, [&](auto tag, int64_t v) {
      constexpr int count = decltype(tag)::value;
      Vec<T> total[Slots][count], x[count];
      for (int i = 0; i < count; i++) x[i] = load(vector + (v + i) * width);
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) total[s][i] = x[i] * factors[s * lanes + lane];
      for (int64_t m = 1; m < terms; m++) {
        for (int i = 0; i < count; i++) x[i] = load(vector + m * size + (v + i) * width);
        for (int s = 0; s < Slots; s++)
          for (int i = 0; i < count; i++) total[s][i] += x[i] * coefficient[s][(m - 1) * lanes + lane];
      }
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) store(gradients + s * gradient_stride + lane * size + (v + i) * width, total[s][i]);
    });
  }
}

// weight_ke gets sum over samples and rows of pose_rk gradient_re.
template <class T, int NV, int Rows, int Inner, int Outer>
void weight_gradient(const VoteShape& shape, const SlotGradients<T>& slot, Write write, T* weight) {
  constexpr int lanes = Lanes<T, NV>::count, width = Simd<T>::width;
  const int64_t rows = Rows ? Rows : shape.rows, inner = Inner ? Inner : shape.inner;
  const int64_t outer = Outer ? Outer : shape.outer, row_size = padded(outer, width);
  const int64_t tiles = slot.samples / lanes;
  const auto some_rows = [&](auto count_tag, int64_t k) {
    constexpr int count = decltype(count_tag)::value;
    in_pairs(row_size / width, [&](auto tag, int64_t v) {
      constexpr int vectors = decltype(tag)::value;
      Vec<T> total[count][vectors] = {};
      for (int64_t row = 0; row < rows; row++)
        for (int64_t tile = 0; tile < tiles; tile++) {
          const T* const pose = slot.poses + tile * slot.pose_stride + (row * inner + k) * lanes;
          const T* const gradient = slot.vote_gradients + (tile * lanes * rows + row) * row_size + v * width;
#pragma GCC unroll 4
          for (int lane = 0; lane < lanes; lane++) {
            Vec<T> x[vectors];
            for (int i = 0; i < vectors; i++) x[i] = load(gradient + lane * rows * row_size + i * width);
            for (int c = 0; c < count; c++)
              for (int i = 0; i < vectors; i++) total[c][i] += x[i] * pose[c * lanes + lane];
          }
        }
      for (int c = 0; c < count; c++)
        for (int i = 0; i < vectors; i++)
          put_entries(weight + (k + c) * outer + (v + i) * width, total[c][i], outer - (v + i) * width, write);
    });
  };
  for (int64_t four = 0; four < inner / 4; four++) some_rows(std::integral_constant<int, 4>(), 4 * four);
  for (int64_t left = inner % 4; left > 0; left--) some_rows(std::integral_constant<int, 1>(), inner - left);
}

// pose_rk += sum over e of gradient_re weight_ke, for every sample.
//   turned: the weight as [e][padded inner]; pose_gradients: [sample][row][padded inner]
template <class T, int NV, int Rows, int Inner, int Outer>
void pose_gradients(const VoteShape& shape, const SlotGradients<T>& slot, const T* turned, T* pose_gradients) {
  constexpr int width = Simd<T>::width;
  const int64_t rows = Rows ? Rows : shape.rows, inner = Inner ? Inner : shape.inner;
  const int64_t outer = Outer ? Outer : shape.outer;
  const int64_t gradient_size = padded(outer, width), pose_size = padded(inner, width);
  in_pairs(pose_size / width, [&](auto tag, int64_t v) {
    constexpr int vectors = decltype(tag)::value, at_once = 8 / vectors;
    for (int64_t sample = 0; sample < slot.samples; sample += at_once)
      for (int64_t row = 0; row < rows; row++) {
        const T* const gradient = slot.vote_gradients + (sample * rows + row) * gradient_size;
        T* const to = pose_gradients + (sample * rows + row) * pose_size + v * width;
        Vec<T> total[at_once][vectors];
        for (int s = 0; s < at_once; s++)
          for (int i = 0; i < vectors; i++) total[s][i] = load(to + s * rows * pose_size + i * width);
#pragma GCC unroll 16
        for (int64_t e = 0; e < outer; e++) {
          Vec<T> w[vectors];
          for (int i = 0; i < vectors; i++) w[i] = load(turned + e * pose_size + (v + i) * width);
          for (int s = 0; s < at_once; s++)
            for (int i = 0; i < vectors; i++) total[s][i] += w[i] * gradient[s * rows * gradient_size + e];
        }
        for (int s = 0; s < at_once; s++)
          for (int i = 0; i < vectors; i++) store(to + s * rows * pose_size + i * width, total[s][i]);
      }
  });
}

// bias_re += sum over samples of gradient_re.
template <class T>
void add_bias_gradient(const VoteShape& shape, const SlotGradients<T>& slot, T* bias) {
  constexpr int width = Simd<T>::width;
  const int64_t row_size = padded(shape.outer, width);
  for (int64_t row = 0; row < shape.rows; row++)
    for (int64_t v = 0; v < row_size; v += width) {
      Vec<T> total = {};
      for (int64_t sample = 0; sample < slot.samples; sample++)
        total += load(slot.vote_gradients + (sample * shape.rows + row) * row_size + v);
      put_entries(bias + row * shape.outer + v, total, shape.outer - v, Write::add);
    }
}

// gradient_re += coefficient vote_re, the votes being formed anew (euclidean metric only).
//   filled: the weight as [k][padded outer]; base: bias and offset, [row][padded outer]; coefficients by sample
template <class T, int NV>
void add_votes(const VoteShape& shape, const SlotGradients<T>& slot, const T* filled, const T* base,
               const T* coefficients, T* gradients) {
  constexpr int lanes = Lanes<T, NV>::count, width = Simd<T>::width;
  const int64_t row_size = padded(shape.outer, width);
  for (int64_t sample = 0; sample < slot.samples; sample++) {
    const T* const pose = slot.poses + sample / lanes * slot.pose_stride + sample % lanes;
    for (int64_t row = 0; row < shape.rows; row++)
      for (int64_t v = 0; v < row_size; v += width) {
        Vec<T> vote = load(base + row * row_size + v);
        for (int64_t k = 0; k < shape.inner; k++)
          vote += load(filled + k * row_size + v) * pose[(row * shape.inner + k) * lanes];
        T* const to = gradients + (sample * shape.rows + row) * row_size + v;
        store(to, load(to) + vote * coefficients[sample]);
      }
  }
}

}  // namespace torchcaps
