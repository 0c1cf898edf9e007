// Votes of one child in one slot, and their gradients, for all parents at once.
//
// A pose is `rows` x `inner`, a transformation `inner` x `outer`, a vote `rows` x `outer`; weights are packed as
// [vector][inner * outer] registers. `MatrixShape` is known to the compiler (matrix capsules of 4 x 4), with one register
// of parents or any number; `AnyShape` takes everything else.
#pragma once
#include <type_traits>

#include "simd.h"
#include "votes.h"

namespace torchcaps {
namespace by_child {

// Registers of parents: a constant, or 0 where the compiler does not know how many.
template <int Known>
struct Registers {
  static constexpr int vectors = Known;
  template <class T>
  explicit Registers(const Votes<T>&) {}
};

template <>
struct Registers<0> {
  const int vectors;
  template <class T>
  explicit Registers(const Votes<T>& votes) : vectors(int((votes.parents + Simd<T>::width - 1) / Simd<T>::width)) {}
};

template <int Vectors>
struct MatrixShape : Registers<Vectors> {
  static constexpr int rows = 4, inner = 4, outer = 4, size = 16;
  template <class T>
  static bool fits(const Votes<T>& votes) {
    return votes.rows == rows && votes.inner == inner && votes.outer == outer && votes.parents <= most<T>();
  }
  using Registers<Vectors>::Registers;

 private:
  template <class T>
  static constexpr int64_t most() {
    return Vectors > 0 ? Vectors * Simd<T>::width : largest_number;
  }
};

struct AnyShape : Registers<0> {
  template <class T>
  explicit AnyShape(const Votes<T>& votes)
      : Registers<0>(votes), rows(int(votes.rows)), inner(int(votes.inner)), outer(int(votes.outer)),
        size(int(votes.vote_size())) {}
  const int rows, inner, outer, size;
};

// Keeps a value that is used several times in a register; left alone, the compiler loads it again for each use.
template <class V>
inline void keep(V& value) {
#if defined(TORCHCAPS_AVX512)
  asm("" : "+v"(value));
#elif defined(__AVX__)
  asm("" : "+x"(value));
#else
  (void)value;
#endif
}

// Calls body(integral constant Size, first) on blocks that cover 0 .. count: as many as fit of Size, then of its half.
// Sums in a block do not wait for each other.
template <int Size = 8, class Body>
inline void in_blocks(int count, Body&& body, int first = 0) {
  for (; first + Size <= count; first += Size) body(std::integral_constant<int, Size>(), first);
  if constexpr (Size > 1) in_blocks<Size / 2>(count, body, first);
}

// delta = pose * weight - centre; with `with_distance` also distance = sum over entries of delta^2 * precision.
template <bool with_distance, class T>
inline void centred_votes(const AnyShape& shape, const T* pose, const Vec<T>* weight, const Vec<T>* centre,
                          const Vec<T>* precision, int vectors, Vec<T>* delta, Vec<T>* distance) {
  for (int v = 0; v < vectors; v++) {
    Vec<T> total{};
    for (int r = 0; r < shape.rows; r++) {
      in_blocks(shape.outer, [&](auto size, int c) {
        const int h = r * shape.outer + c;
        Vec<T> x[size];
        for (int i = 0; i < size; i++) x[i] = -centre[h + i];
        for (int k = 0; k < shape.inner; k++)
          for (int i = 0; i < size; i++) x[i] += weight[k * shape.outer + c + i] * pose[r * shape.inner + k];
        for (int i = 0; i < size; i++) {
          delta[h + i] = x[i];
          if (with_distance) total += x[i] * x[i] * precision[h + i];
        }
      });
    }
    if (with_distance) distance[v] = total;
    weight += shape.inner * shape.outer;
    centre += shape.size;
    precision += with_distance ? shape.size : 0;
    delta += shape.size;
  }
}

// Rows of the pose stay in registers while the parents pass by: all four where there are registers enough, else two.
template <bool with_distance, class T, int Vectors>
inline void centred_votes(const MatrixShape<Vectors>&, const T* pose, const Vec<T>* weight, const Vec<T>* centre,
                          const Vec<T>* precision, int vectors, Vec<T>* delta, Vec<T>* distance) {
  constexpr int together = num_registers >= 32 ? 4 : 2;
  for (int first = 0; first < 4; first += together) {
    Vec<T> row[together][4];
    for (int i = 0; i < together; i++)
      for (int k = 0; k < 4; k++) row[i][k] = broadcast<T>(pose[4 * (first + i) + k]);
    for (int v = 0; v < vectors; v++) {
      Vec<T> totals[together] = {};
      if (with_distance && first > 0) totals[0] = distance[v];
      for (int c = 0; c < 4; c++) {
        const Vec<T>* column = weight + 16 * v + c;
        Vec<T> w0 = column[0], w1 = column[4], w2 = column[8], w3 = column[12];
        keep(w0), keep(w1), keep(w2), keep(w3);
        for (int i = 0; i < together; i++) {
          const int h = 16 * v + 4 * (first + i) + c;
          Vec<T> x = w0 * row[i][0] - centre[h];
          x += w1 * row[i][1];
          x += w2 * row[i][2];
          x += w3 * row[i][3];
          delta[h] = x;
          if (with_distance) totals[i] += x * precision[h] * x;
        }
      }
      if (!with_distance) continue;
      for (int i = 1; i < together; i++) totals[0] += totals[i];
      distance[v] = totals[0];
    }
  }
}

// grad_pose[rows * inner] += sum over parents of grad_vote * weight, one register per entry (lanes summed later).
template <class T>
inline void add_pose_gradient(const AnyShape& shape, const Vec<T>* grad_vote, const Vec<T>* weight, int vectors,
                              Vec<T>* grad_pose) {
  for (int v = 0; v < vectors; v++) {
    for (int r = 0; r < shape.rows; r++) {
      in_blocks(shape.inner, [&](auto size, int k) {
        Vec<T> total[size];
        for (int i = 0; i < size; i++) total[i] = grad_pose[r * shape.inner + k + i];
        for (int c = 0; c < shape.outer; c++)
          for (int i = 0; i < size; i++) total[i] += grad_vote[r * shape.outer + c] * weight[(k + i) * shape.outer + c];
        for (int i = 0; i < size; i++) grad_pose[r * shape.inner + k + i] = total[i];
      });
    }
    grad_vote += shape.size;
    weight += shape.inner * shape.outer;
  }
}

template <class T, int Vectors>
inline void add_pose_gradient(const MatrixShape<Vectors>&, const Vec<T>* grad_vote, const Vec<T>* weight, int vectors,
                              Vec<T>* grad_pose) {
  for (int r = 0; r < 4; r += 2) {
    Vec<T> a0 = grad_pose[4 * r], a1 = grad_pose[4 * r + 1], a2 = grad_pose[4 * r + 2], a3 = grad_pose[4 * r + 3];
    Vec<T> b0 = grad_pose[4 * r + 4], b1 = grad_pose[4 * r + 5], b2 = grad_pose[4 * r + 6];
    Vec<T> b3 = grad_pose[4 * r + 7];
    for (int v = 0; v < vectors; v++) {
      for (int c = 0; c < 4; c++) {
        const Vec<T>* column = weight + 16 * v + c;
        Vec<T> w0 = column[0], w1 = column[4], w2 = column[8], w3 = column[12];
        Vec<T> upper = grad_vote[16 * v + 4 * r + c], lower = grad_vote[16 * v + 4 * r + 4 + c];
        keep(w0), keep(w1), keep(w2), keep(w3), keep(upper), keep(lower);
        a0 += upper * w0;
        b0 += lower * w0;
        a1 += upper * w1;
        b1 += lower * w1;
        a2 += upper * w2;
        b2 += lower * w2;
        a3 += upper * w3;
        b3 += lower * w3;
      }
    }
    grad_pose[4 * r] = a0, grad_pose[4 * r + 1] = a1, grad_pose[4 * r + 2] = a2, grad_pose[4 * r + 3] = a3;
    grad_pose[4 * r + 4] = b0, grad_pose[4 * r + 5] = b1, grad_pose[4 * r + 6] = b2, grad_pose[4 * r + 7] = b3;
  }
}

// grad_weight[vector][inner * outer] += pose^T * grad_vote.
template <class T>
inline void add_weight_gradient(const AnyShape& shape, const T* pose, const Vec<T>* grad_vote, int vectors,
                                Vec<T>* grad_weight) {
  for (int v = 0; v < vectors; v++) {
    for (int k = 0; k < shape.inner; k++) {
      for (int c = 0; c < shape.outer; c++) {
        Vec<T> total = grad_weight[k * shape.outer + c];
        for (int r = 0; r < shape.rows; r++) total += grad_vote[r * shape.outer + c] * pose[r * shape.inner + k];
        grad_weight[k * shape.outer + c] = total;
      }
    }
    grad_vote += shape.size;
    grad_weight += shape.inner * shape.outer;
  }
}

template <class T, int Vectors>
inline void add_weight_gradient(const MatrixShape<Vectors>&, const T* pose, const Vec<T>* grad_vote, int vectors,
                                Vec<T>* grad_weight) {
  for (int k = 0; k < 4; k += 2) {
    const Vec<T> a0 = broadcast<T>(pose[k]), a1 = broadcast<T>(pose[4 + k]);
    const Vec<T> a2 = broadcast<T>(pose[8 + k]), a3 = broadcast<T>(pose[12 + k]);
    const Vec<T> b0 = broadcast<T>(pose[k + 1]), b1 = broadcast<T>(pose[4 + k + 1]);
    const Vec<T> b2 = broadcast<T>(pose[8 + k + 1]), b3 = broadcast<T>(pose[12 + k + 1]);
    for (int v = 0; v < vectors; v++) {
      for (int c = 0; c < 4; c++) {
        const Vec<T>* column = grad_vote + 16 * v + c;
        const Vec<T> g0 = column[0], g1 = column[4], g2 = column[8], g3 = column[12];
        Vec<T>* row = grad_weight + 16 * v + 4 * k + c;
        Vec<T> x = row[0] + g0 * a0, y = row[4] + g0 * b0;
        x += g1 * a1;
        y += g1 * b1;
        x += g2 * a2;
        y += g2 * b2;
        x += g3 * a3;
        y += g3 * b3;
        row[0] = x;
        row[4] = y;
      }
    }
  }
}

}  // namespace by_child
}  // namespace torchcaps
