// Forward pass of the softmax routings, and the couplings of any iteration afterwards.
//
// Saved for the backward pass: the weighted sums of every iteration, (iterations, B * S, J, D), and for the
// euclidean metric the masses sum_i c_ij, (iterations, B * S, J).
#pragma once
#include <vector>

#include "softmax_pairs.h"
#include "softmax_plan.h"

namespace torchcaps {

template <class T, int NV>
class SoftmaxForward {
  using Plan = SoftmaxPlan<T, NV>;
  static constexpr int lanes = Plan::lanes;

 public:
  explicit SoftmaxForward(const Plan& plan)
      : plan_(plan), pairs_(plan), pieces_(plan.num_pieces(0)), blocks_(plan.num_blocks(0)) {}

  // out: (B * S, J, D). `masses` may be null unless the metric is euclidean.
  void run(T* out, T* sums, T* masses) {
    take();
    Crew::work(plan_.threads, [&](Crew& crew) {
      plan_.for_each_group(crew, pieces_, blocks_, [&](const Hands& hands, const Group& group, int64_t, int64_t home) {
        route(homes_[home], hands, group, out, sums, masses);
      });
    });
  }

  // coupling: (B * S, N, J) of one iteration, from the sums that `run` saved.
  void couplings(int64_t iteration, const T* sums, const T* masses, T* coupling) {
    require(!plan_.options.bfloat16);
    take();
    const auto couple_group = [&](const Home& scratch, const Hands& hands, const Group& group) {
      plan_.share_tiles(hands, group,
                        [&](int, int64_t tile) { restore_query(scratch, group, tile, iteration, sums, masses); });
      plan_.share_slots(hands, [&](int64_t, int who, const Range& own) {
        scratch.packed.fill(plan_, group, own);
        for (int64_t n = own.first; n < own.last; n++)
          for (int64_t tile = 0; tile < group.tiles; tile++) {
            couple(scratch, slots_[who], iteration, n, tile);
            store_couplings(slots_[who], group, n, tile, coupling);
          }
      });
    };
    Crew::work(plan_.threads, [&](Crew& crew) {
      plan_.for_each_group(crew, pieces_, blocks_, [&](const Hands& hands, const Group& group, int64_t, int64_t home) {
        couple_group(homes_[home], hands, group);
      });
    });
  }

 private:
  // What a worker needs.
  struct Slot : SlotScratch<T, NV> {
    PairScratch pairs;
  };

  // What a group is routed in.
  struct Home {
    PackedGroup<T, NV> packed;
    PartialSums<T, NV> partial;
    T *query, *out;  // [tile][parent][entry][lane]
  };

  void take() {
    for (int i = 0; i < plan_.num_homes(); i++) {
      const int64_t size = plan_.group_tiles * plan_.tile_votes();
      homes_.push_back({PackedGroup<T, NV>::take(plan_, frame_), PartialSums<T, NV>::take(plan_, pieces_, frame_),
                        frame_.take<T>(size), frame_.take<T>(size)});
    }
    for (int i = 0; i < plan_.threads; i++)
      slots_.push_back({SlotScratch<T, NV>::take(plan_, frame_), pairs_.take(frame_)});
  }

  void route(const Home& scratch, const Hands& hands, const Group& group, T* out, T* sums, T* masses) {
    for (int64_t t = 0; t < plan_.options.iterations; t++) {
      plan_.share_slots(hands, [&](int64_t piece, int who, const Range& own) {
        if (t == 0) scratch.packed.fill(plan_, group, own);
        scratch.partial.clear(plan_, group, piece);
        const int64_t step = pairs_.used() ? pairs_.slots_at_once() : Plan::slot_block;
        for (int64_t n = own.first; n < own.last; n += step) {
          const Range block{n, std::min(own.last, n + step)};
          if (pairs_.used()) pairs_.round_weights(block, slots_[who].pairs);
          for (int64_t tile = 0; tile < group.tiles; tile++) {
            if (t == 0)
              add_uniform(scratch, slots_[who], piece, block, tile);
            else
              add_routed(scratch, slots_[who], piece, t, block, tile);
          }
        }
      });
      plan_.share_tiles(hands, group,
                        [&](int, int64_t tile) { finish_iteration(scratch, group, tile, t, out, sums, masses); });
    }
  }

  // First iteration: every parent has the same share, so the sums are one plain product over slots and entries.
  void add_uniform(const Home& scratch, const Slot& slot, int64_t piece, const Range& block, int64_t tile) {
    const T* weights[Plan::slot_block];
    T* const sums = scratch.partial.sum(plan_, piece, tile);
    T* const masses = scratch.partial.mass(plan_, piece, tile);
    for (int64_t n = block.first; n < block.last; n++) {
      const T* factor = scratch.packed.factor(plan_, tile, n);
      T* const pose = scratch.packed.pose(plan_, tile, n);
      T* const scaled = slot.scaled_poses + (n - block.first) * plan_.tile_poses();
      for (int64_t p = 0; p < plan_.shape.pose_size(); p++)
        for (int lane = 0; lane < lanes; lane++) scaled[p * lanes + lane] = pose[p * lanes + lane] * factor[lane];
      if (pairs_.used()) pairs_.round_in_place(pose);
      weights[n - block.first] = plan_.weight_of(n);
      for (int lane = 0; lane < lanes; lane++) masses[lane] += factor[lane];
      if (plan_.has_base()) {
        plan_.fill_base(n, slot.base);
        for (int64_t i = 0; i < plan_.shape.votes_size(); i++)
          for (int lane = 0; lane < lanes; lane++) sums[i * lanes + lane] += slot.base[i] * factor[lane];
      }
    }
    if (pairs_.used())
      pairs_.add_uniform(block, slot.scaled_poses, slot.pairs, sums);
    else
      plan_.kernels.uniform(plan_.shape, block.size(), slot.scaled_poses, weights, sums);
  }

  // Later iterations: votes of a slot, their couplings, their share of the sums.
  void add_routed(const Home& scratch, const Slot& slot, int64_t piece, int64_t t, const Range& block, int64_t tile) {
    for (int64_t n = block.first; n < block.last; n++) {
      couple(scratch, slot, t, n, tile);
      add_weighted<T, NV>(plan_.shape.parents, plan_.shape.vote_size(), slot.couplings, slot.votes,
                          scratch.partial.sum(plan_, piece, tile));
      if (!plan_.update.uses_mass()) continue;
      T* const masses = scratch.partial.mass(plan_, piece, tile);
      for (int64_t i = 0; i < plan_.tile_parents(); i++) masses[i] += slot.couplings[i];
    }
  }

  // Votes and couplings of one slot of one tile.
  void couple(const Home& scratch, const Slot& slot, int64_t t, int64_t n, int64_t tile) {
    if (plan_.has_base()) plan_.fill_base(n, slot.base);
    const T* const pose = scratch.packed.pose(plan_, tile, n);
    const T* const query = scratch.query + tile * plan_.tile_votes();
    if (pairs_.used())
      pairs_.form_votes(n, pose, slot.pairs, slot.base, query, slot.votes, slot.couplings);
    else
      plan_.kernels.votes(plan_.shape, pose, plan_.weight_of(n), slot.base, query, nullptr, slot.votes, slot.couplings,
                          nullptr);
    const T* factors = scratch.packed.factor(plan_, tile, n);
    if (t == 0)
      fill_uniform(factors, slot.couplings);
    else
      plan_.competition.template softmax<NV>(slot.couplings, plan_.logit_scale, factors);
  }

  void fill_uniform(const T* factors, T* couplings) const {
    for (int64_t j = 0; j < plan_.shape.parents; j++)
      for (int lane = 0; lane < lanes; lane++)
        couplings[j * lanes + lane] = plan_.competition.uniform_share(j) * factors[lane];
  }

  // Adds up the sums of one tile, saves them, and makes the next query or the output of them.
  void finish_iteration(const Home& scratch, const Group& group, int64_t tile, int64_t t, T* out, T* sums, T* masses) {
    scratch.partial.reduce(plan_, tile);
    T* const sum = scratch.partial.sum(plan_, 0, tile);
    T* const mass = scratch.partial.mass(plan_, 0, tile);
    T* const query = scratch.query + tile * plan_.tile_votes();
    if (t == 0) {
      apply_uniform_share(sum, mass);
      std::fill_n(query, plan_.tile_votes(), T(0));
    }
    const int64_t size = plan_.shape.votes_size(), parents = plan_.shape.parents;
    plan_.scatter(group, tile, size, sum, sums + t * plan_.samples * size);
    if (plan_.update.uses_mass()) plan_.scatter(group, tile, parents, mass, masses + t * plan_.samples * parents);
    if (t + 1 < plan_.options.iterations) return plan_.update.next_query(t, sum, mass, query);
    T* const tile_out = scratch.out + tile * plan_.tile_votes();
    plan_.update.output(sum, mass, tile_out);
    plan_.scatter(group, tile, size, tile_out, out);
  }

  // The first iteration collected plain sums, and the mass of a slot in the row of parent 0 only.
  void apply_uniform_share(T* sum, T* mass) const {
    const int64_t size = plan_.shape.vote_size() * lanes;
    for (int64_t j = plan_.shape.parents - 1; j >= 0; j--) {
      const T share = plan_.competition.uniform_share(j);
      for (int64_t i = j * size; i < (j + 1) * size; i++) sum[i] *= share;
      for (int lane = 0; lane < lanes; lane++) mass[j * lanes + lane] = mass[lane] * share;
    }
  }

  void restore_query(const Home& scratch, const Group& group, int64_t tile, int64_t iteration, const T* sums,
                     const T* masses) {
    const int64_t size = plan_.shape.votes_size(), parents = plan_.shape.parents;
    T* const sum = scratch.partial.sum(plan_, 0, tile);
    T* const mass = scratch.partial.mass(plan_, 0, tile);
    T* const query = scratch.query + tile * plan_.tile_votes();
    std::fill_n(query, plan_.tile_votes(), T(0));
    for (int64_t t = 0; t < iteration; t++) {
      plan_.gather(group, tile, size, sums + t * plan_.samples * size, sum);
      if (plan_.update.uses_mass()) plan_.gather(group, tile, parents, masses + t * plan_.samples * parents, mass);
      plan_.update.next_query(t, sum, mass, query);
    }
  }

  void store_couplings(const Slot& slot, const Group& group, int64_t n, int64_t tile, T* coupling) const {
    for (int lane = 0; lane < lanes; lane++) {
      const int64_t sample = plan_.sample_at(group, tile, lane);
      if (sample < 0) continue;
      T* const to = coupling + (sample * plan_.votes.slots + n) * plan_.shape.parents;
      for (int64_t j = 0; j < plan_.shape.parents; j++) to[j] = slot.couplings[j * lanes + lane];
    }
  }

  const Plan& plan_;
  const PairedSlots<T, NV> pairs_;
  const int64_t pieces_, blocks_;
  Arena::Frame frame_;
  std::vector<Home> homes_;
  std::vector<Slot> slots_;  // one for each worker
};

}  // namespace torchcaps
