// Votes of rounded poses and weights, two products at once, where the caller allows it and the processor can.
//
// Entries 2k and 2k + 1 of a pose lie side by side in a lane, those of a weight in what is broadcast to the lanes; an odd
// last one gets a zero. All else is as without: the kernels are the same, for half as many entries of a pose.
#pragma once
#include "softmax_plan.h"

namespace torchcaps {

// What one thread rounds for one block of slots.
struct PairScratch {
  Pair *poses, *weights;
};

template <class T, int NV>
class PairedSlots {
  using Plan = SoftmaxPlan<T, NV>;
  static constexpr int64_t rounded_bytes = int64_t(48) << 10;

 public:
  explicit PairedSlots(const Plan& plan) : plan_(plan), shape_(plan.shape) {
    shape_.inner = (plan.shape.inner + 1) / 2;
    if constexpr (can_pair<T>) {
      const auto& options = plan.options;
      used_ = options.bfloat16 && processor_pairs();
      kernels_ = choose_pair_kernels<T, NV>(
          shape_, options.algorithm == kmeans_euclidean ? Metric::euclidean : Metric::dot);
    }
  }

  // Slots that visit a tile in a row, so few that their rounded weights stay in the nearest caches.
  int64_t slots_at_once() const {
    const int64_t bytes = shape_.weight_size() * int64_t(sizeof(Pair));
    return std::clamp<int64_t>(rounded_bytes / bytes, 1, Plan::slot_block);
  }

  bool used() const { return can_pair<T> && used_; }

  PairScratch take(Arena::Frame& frame) const {
    if (!used()) return {};
    return {frame.take<Pair>(Plan::slot_block * tile_poses()),
            frame.take<Pair>(Plan::slot_block * shape_.weight_size() + Plan::lanes)};
  }

  void round_weights(const Range& block, const PairScratch& to) const {
    if constexpr (can_pair<T>)
      for (int64_t n = block.first; n < block.last; n++)
        for (int64_t j = 0; j < shape_.parents; j++)
          pair_rows(plan_.weight_of(n) + j * plan_.shape.inner * shape_.outer, plan_.shape.inner, shape_.outer,
                    weights_of(n, to) + j * shape_.inner * shape_.outer);
  }

  // The uniform sums of a block of slots whose weights are rounded.
  void add_uniform(const Range& block, const T* scaled_poses, const PairScratch& pairs, T* sums) const {
    if constexpr (can_pair<T>) {
      const Pair* weights[Plan::slot_block];
      for (int64_t n = block.first; n < block.last; n++) {
        const int64_t i = n - block.first;
        round_pose(scaled_poses + i * plan_.tile_poses(), pairs.poses + i * tile_poses());
        weights[i] = weights_of(n, pairs);
      }
      kernels_.uniform(shape_, block.size(), pairs.poses, weights, sums);
    }
  }

  // Rounds a pose in its own place, for form_votes().
  void round_in_place(T* pose) const {
    if constexpr (can_pair<T>) round_pose(pose, reinterpret_cast<Pair*>(pose));
  }

  // The votes of a slot whose pose and weights are rounded, with logits.
  void form_votes(int64_t slot, const T* pose, const PairScratch& pairs, const T* base, const T* query, T* votes,
                  T* logits) const {
    if constexpr (can_pair<T>) {
      kernels_.votes(shape_, reinterpret_cast<const Pair*>(pose), weights_of(slot, pairs), base, query, nullptr, votes,
                     logits, nullptr);
    }
  }

 private:
  int64_t tile_poses() const { return shape_.pose_size() * Plan::lanes; }
  Pair* weights_of(int64_t slot, const PairScratch& pairs) const {
    return pairs.weights + slot % Plan::slot_block * shape_.weight_size();
  }
  void round_pose(const T* pose, Pair* to) const {
    const int64_t inner = plan_.shape.inner;
    for (int64_t row = 0; row < shape_.rows; row++)
      pair_rows(pose + row * inner * Plan::lanes, inner, Plan::lanes, to + row * shape_.inner * Plan::lanes);
  }

  const Plan& plan_;
  VoteShape shape_;  // of pairs
  PairKernels<T> kernels_{};
  bool used_ = false;
};

}  // namespace torchcaps
