// The votes of a capsule layer, described and never formed.
//
// Every layer is a set of windows, every window a list of slots, every slot holds one child capsule and
// knows which transformation it uses. A dense layer is one window with all children; a convolutional layer
// has one window per output position. The vote of slot n for parent type j is
//
//     vote(b, s, n, j) = pose(child) * weight(transform, j) + bias(transform, j) + offset(n)
//
// where a pose is `rows` row vectors of `inner` entries (a vector pose has one row, a P x P matrix pose has
// P rows of P entries), so that vectors and matrices are the same computation.
//
// The struct is plain C and is filled by Python through ctypes: field order and types are part of the ABI.
#pragma once
#include <cstdint>
#include <limits>

#include "abi.h"

namespace torchcaps {

template <class T>
struct Votes {
  int64_t examples;    // B
  int64_t windows;     // S: windows per example (1 for dense and class layers)
  int64_t slots;       // N: children per window
  int64_t children;    // I: children per example, as they lie in memory
  int64_t parents;     // J: parent types per window
  int64_t transforms;  // number of distinct (J, inner, outer) blocks in `weight`
  int64_t rows;        // R: rows of a pose (1 for vectors, P for P x P matrices)
  int64_t inner;       // K: entries of a row of a pose
  int64_t outer;       // D / R: entries of a row of a vote

  const T* poses;            // (B, I, R * K)
  const T* activations;      // (B, I), or null
  const T* weight;           // (transforms, J, K, D / R)
  const T* bias;             // (transforms, J, D), or null
  const T* offset;           // (N, D) added to the votes of a slot for every parent, or null (no gradient)
  const int32_t* child;      // (S, N): child in a slot; null: slot n holds child n
  const int32_t* transform;  // (N): transformation of a slot; null: slot n uses block n
  const uint8_t* child_mask;   // (B, I): 0 = this child has no votes; null: all have
  const uint8_t* window_mask;  // (B, S): 0 = this window does not exist; null: all exist

  int64_t vote_size() const { return rows * outer; }
  int64_t pose_size() const { return rows * inner; }
  int64_t child_at(int64_t window, int64_t slot) const { return child ? child[window * slots + slot] : slot; }
  int64_t transform_at(int64_t slot) const { return transform ? transform[slot] : slot; }
  bool child_votes(int64_t example, int64_t c) const { return !child_mask || child_mask[example * children + c]; }
  bool window_exists(int64_t example, int64_t window) const {
    return !window_mask || window_mask[example * windows + window];
  }
};

// Children, slots and windows are numbered with 32 bits in the tables; everything else is counted with 64.
constexpr int64_t largest_number = std::numeric_limits<int32_t>::max();

// Refuses what would make a kernel read outside its memory.
template <class T>
void check(const Votes<T>& votes) {
  require(votes.examples >= 0 && votes.windows >= 1 && votes.slots >= 1 && votes.children >= 1);
  require(votes.windows <= largest_number && votes.slots <= largest_number && votes.children <= largest_number);
  require(votes.parents >= 1 && votes.rows >= 1 && votes.inner >= 1 && votes.outer >= 1);
  require(votes.poses && votes.weight);
  for (int64_t k = 0; votes.child && k < votes.windows * votes.slots; k++)
    require(votes.child[k] >= 0 && votes.child[k] < votes.children);
  require(votes.child || (votes.windows == 1 && votes.slots == votes.children));
  for (int64_t n = 0; votes.transform && n < votes.slots; n++)
    require(votes.transform[n] >= 0 && votes.transform[n] < votes.transforms);
  require(votes.transform || votes.slots <= votes.transforms);
}

}  // namespace torchcaps
