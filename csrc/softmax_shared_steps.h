// The inner steps of softmax routings with shared transformations: poses against vectors of parents, for all lanes.
#pragma once
#include <type_traits>

#include "softmax_tile.h"

namespace torchcaps {

// out_o = sum_i in_i weight[i * in_stride + o * out_stride], for all lanes.
template <class T, int NV>
void transform_lanes(int64_t num_in, int64_t num_out, const T* in, const T* weight, int64_t in_stride,
                     int64_t out_stride, T* out) {
  using L = Lanes<T, NV>;
  const auto outputs = [&](auto count_tag, int64_t o) {
    constexpr int count = decltype(count_tag)::value;
    Vec<T> total[count][NV] = {};
    for (int64_t i = 0; i < num_in; i++) {
      Vec<T> x[NV];
      for (int v = 0; v < NV; v++) x[v] = load(in + i * L::count + v * L::width);
      for (int c = 0; c < count; c++)
        for (int v = 0; v < NV; v++) total[c][v] += x[v] * weight[i * in_stride + (o + c) * out_stride];
    }
    for (int c = 0; c < count; c++)
      for (int v = 0; v < NV; v++) store(out + (o + c) * L::count + v * L::width, total[c][v]);
  };
  int64_t o = 0;
  for (; o + 4 <= num_out; o += 4) outputs(std::integral_constant<int, 4>(), o);
  for (; o < num_out; o++) outputs(std::integral_constant<int, 1>(), o);
}

// Calls body(first, constant count) for pieces of four and then of one.
template <class Body>
inline __attribute__((always_inline)) void in_fours(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) body(i, std::integral_constant<int, 4>());
  for (; i < size; i++) body(i, std::integral_constant<int, 1>());
}

// agreement[s][j] = <pose_s, vectors_j> for `Slots` neighbouring slots.
template <class T, int NV, int Slots>
void pose_agreement(int64_t parents, int64_t inner, const T* poses, const T* vectors, T* agreement) {
  using L = Lanes<T, NV>;
  for (int v = 0; v < L::count; v += L::width)
    in_fours(parents, [&](int64_t j, auto count_tag) {
      constexpr int count = decltype(count_tag)::value;
      Vec<T> total[Slots][count] = {};
      for (int64_t k = 0; k < inner; k++) {
        Vec<T> x[Slots];
        for (int s = 0; s < Slots; s++) x[s] = load(poses + (s * inner + k) * L::count + v);
        for (int c = 0; c < count; c++) {
          const Vec<T> y = load(vectors + ((j + c) * inner + k) * L::count + v);
          for (int s = 0; s < Slots; s++) total[s][c] += x[s] * y;
        }
      }
      for (int s = 0; s < Slots; s++)
        for (int c = 0; c < count; c++) store(agreement + (s * parents + j + c) * L::count + v, total[s][c]);
    });
}

// vectors_j += sum_s coefficient[s][j] pose_s.
template <class T, int NV, int Slots>
void add_weighted_poses(int64_t parents, int64_t inner, const T* coefficients, const T* poses, T* vectors) {
  using L = Lanes<T, NV>;
  for (int v = 0; v < L::count; v += L::width)
    in_fours(parents, [&](int64_t j, auto count_tag) {
      constexpr int count = decltype(count_tag)::value;
      Vec<T> c[Slots][count];
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) c[s][i] = load(coefficients + (s * parents + j + i) * L::count + v);
      for (int64_t k = 0; k < inner; k++) {
        Vec<T> x[Slots];
        for (int s = 0; s < Slots; s++) x[s] = load(poses + (s * inner + k) * L::count + v);
        for (int i = 0; i < count; i++) {
          T* const to = vectors + ((j + i) * inner + k) * L::count + v;
          Vec<T> total = load(to);
          for (int s = 0; s < Slots; s++) total += c[s][i] * x[s];
          store(to, total);
        }
      }
    });
}

// gradient_s += sum_j couplings[s][j] P_j (+ logits[s][j] Q_j).
template <class T, int NV, int Slots, bool with_logits>
void add_pose_gradients(int64_t parents, int64_t inner, const T* couplings, const T* p, const T* logits, const T* q,
                        T* gradients) {
  using L = Lanes<T, NV>;
  for (int v = 0; v < L::count; v += L::width)
    in_fours(inner, [&](int64_t k, auto count_tag) {
      constexpr int count = decltype(count_tag)::value;
      Vec<T> total[Slots][count];
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) total[s][i] = load(gradients + (s * inner + k + i) * L::count + v);
      for (int64_t j = 0; j < parents; j++) {
        Vec<T> c[Slots], h[Slots];
        for (int s = 0; s < Slots; s++) {
          c[s] = load(couplings + (s * parents + j) * L::count + v);
          if (with_logits) h[s] = load(logits + (s * parents + j) * L::count + v);
        }
        for (int i = 0; i < count; i++) {
          const int64_t o = (j * inner + k + i) * L::count + v;
          const Vec<T> y = load(p + o);
          for (int s = 0; s < Slots; s++) total[s][i] += c[s] * y;
          if (!with_logits) continue;
          const Vec<T> z = load(q + o);
          for (int s = 0; s < Slots; s++) total[s][i] += h[s] * z;
        }
      }
      for (int s = 0; s < Slots; s++)
        for (int i = 0; i < count; i++) store(gradients + (s * inner + k + i) * L::count + v, total[s][i]);
    });
}

}  // namespace torchcaps
