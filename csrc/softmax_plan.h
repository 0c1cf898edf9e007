// How a softmax routing is cut into work: tiles of samples, groups of tiles, teams of threads.
//
// A group of tiles is routed from start to end before the next one begins, so scratch memory does not grow
// with the batch. Work is split in one of two ways:
//   - by slots: all threads form one team, each owns a range of slots, partial sums meet at barriers; where every
//     slot has weights of its own, a thread then owns the gradients of these weights too;
//   - by samples: every thread is a team of its own and owns a range of examples.
// Either way each number is produced by one thread or summed in a fixed order, so results repeat bit for bit.
#pragma once
#include <omp.h>

#include <algorithm>

#include "abi.h"
#include "scratch.h"
#include "softmax_kernels.h"
#include "softmax_options.h"
#include "softmax_tile.h"
#include "softmax_update.h"
#include "votes.h"

namespace torchcaps {

struct Range {
  int64_t first, last;
  int64_t size() const { return last - first; }
};

// Part `rank` of `count` things cut into `parts` nearly equal ranges.
inline Range part_of(int64_t count, int64_t rank, int64_t parts) {
  return {count * rank / parts, count * (rank + 1) / parts};
}

// The threads that share the slots of one group, seen by one of them.
struct Team {
  int rank, size;
  void barrier() const {
    if (size == 1) return;
#pragma omp barrier
  }
};

// The tiles that are routed together: samples [first, last), `tiles` of them lane by lane.
struct Group {
  int64_t first, last, tiles;
};

template <class T, int NV>
class SoftmaxPlan {
 public:
  static constexpr int lanes = Lanes<T, NV>::count;
  static constexpr int64_t slot_block = 8;                          // slots that visit a tile in a row
  static constexpr int64_t coefficient_bytes = int64_t(24) << 20;   // of all teams, in the backward pass
  static constexpr int64_t largest_group = 8;
  static constexpr int64_t largest_shared_weight = int64_t(8) << 20;

  SoftmaxPlan(const Votes<T>& votes_, const SoftmaxOptions& options_, int threads_)
      : votes(votes_),
        options(options_),
        shape{votes_.parents, votes_.rows, votes_.inner, votes_.outer},
        competition{votes_.parents, options_.leaky != 0, options_.partial},
        update(options, votes_.parents, votes_.vote_size(), lanes),
        kernels(choose_slot_kernels<T, NV>(
            shape, options_.algorithm == kmeans_euclidean ? Metric::euclidean : Metric::dot)),
        threads(threads_),
        samples(votes_.examples * votes_.windows),
        logit_scale(options_.algorithm == kmeans_euclidean ? T(-options_.inverse_temperature) : T(1)) {
    require(threads >= 1 && options.iterations >= 1 && competition.num_taking_part() >= 1);
    require(!options.amend || votes.activations);
    const int64_t tiles = (samples + lanes - 1) / lanes;
    const int64_t weight_bytes = votes.transforms * shape.weight_size() * int64_t(sizeof(T));
    const bool own_weights = !votes.transform && !votes.child && votes.slots >= 8 * slot_block * threads;
    splits_slots = own_weights || votes.examples < threads || tiles < 4 * threads || weight_bytes > largest_shared_weight;
    const int64_t per_tile =
        num_teams() * 2 * (options.iterations - 1) * votes.slots * votes.parents * lanes * int64_t(sizeof(T)) + 1;
    group_tiles = std::max<int64_t>(1, std::min({tiles, largest_group, coefficient_bytes / per_tile}));
  }

  const Votes<T> votes;
  const SoftmaxOptions options;
  const VoteShape shape;
  const Competition<T> competition;
  const SoftmaxUpdate<T> update;
  const SlotKernels<T> kernels;
  const int threads;
  const int64_t samples;
  const T logit_scale;
  bool splits_slots;
  int64_t group_tiles;

  // Elements of the arrays of one tile.
  int64_t tile_votes() const { return shape.votes_size() * lanes; }
  int64_t tile_parents() const { return shape.parents * lanes; }
  int64_t tile_poses() const { return shape.pose_size() * lanes; }

  int64_t num_teams() const { return splits_slots ? 1 : threads; }
  int64_t team_size() const { return splits_slots ? threads : 1; }

  // Runs body(team number, team, group) for every group, from inside a parallel region.
  template <class Body>
  void for_each_group(Body&& body) const {
    const int thread = omp_get_thread_num(), present = omp_get_num_threads();
    const Team team = splits_slots ? Team{thread, present} : Team{0, 1};
    const Range own = splits_slots ? Range{0, samples} : own_samples(thread, present);
    for (int64_t first = own.first; first < own.last; first += group_tiles * lanes) {
      const int64_t last = std::min(own.last, first + group_tiles * lanes);
      body(splits_slots ? 0 : thread, team, Group{first, last, (last - first + lanes - 1) / lanes});
    }
  }

  Range own_slots(const Team& team) const { return part_of(votes.slots, team.rank, team.size); }

  const T* weight_of(int64_t slot) const { return votes.weight + votes.transform_at(slot) * shape.weight_size(); }
  bool has_base() const { return votes.bias || votes.offset; }

  // What is added to the votes of a slot: bias and offset, (J, D). Needs has_base().
  void fill_base(int64_t slot, T* base) const {
    const int64_t size = shape.vote_size();
    const T* bias = votes.bias ? votes.bias + votes.transform_at(slot) * shape.votes_size() : nullptr;
    const T* offset = votes.offset ? votes.offset + slot * size : nullptr;
    for (int64_t j = 0; j < shape.parents; j++)
      for (int64_t d = 0; d < size; d++) base[j * size + d] = (bias ? bias[j * size + d] : 0) + (offset ? offset[d] : 0);
  }

  // The sample in a lane of a tile, or -1 for none.
  int64_t sample_at(const Group& group, int64_t tile, int64_t lane) const {
    const int64_t sample = group.first + tile * lanes + lane;
    return sample < group.last ? sample : -1;
  }

  // The child in a slot of a sample as (example, child), or -1 when nobody votes there.
  int64_t voter(int64_t sample, int64_t slot) const {
    if (sample < 0) return -1;
    const int64_t example = sample / votes.windows, window = sample % votes.windows;
    const int64_t child = votes.child_at(window, slot);
    if (!votes.window_exists(example, window) || !votes.child_votes(example, child)) return -1;
    return example * votes.children + child;
  }

  // Poses and factors of one slot of one tile. A lane without a voter has pose 0 and factor 0; the factor of
  // the others is 1, or the activation when couplings are amended. `nobody` is a pose of zeros.
  void pack(const Group& group, int64_t tile, int64_t slot, const T* nobody, T* poses, T* factors) const {
    const T* rows[lanes];
    for (int64_t lane = 0; lane < lanes; lane++) {
      const int64_t from = voter(sample_at(group, tile, lane), slot);
      factors[lane] = from < 0 ? T(0) : options.amend ? votes.activations[from] : T(1);
      rows[lane] = from < 0 ? nobody : votes.poses + from * shape.pose_size();
    }
    transpose_rows(rows, lanes, shape.pose_size(), poses, lanes);
  }

  // Tile arrays [index][lane] from and to sample arrays [sample][index]; lanes without a sample repeat the last.
  void gather(const Group& group, int64_t tile, int64_t size, const T* from, T* to) const {
    const T* rows[lanes];
    for (int64_t lane = 0; lane < lanes; lane++)
      rows[lane] = from + std::min(group.first + tile * lanes + lane, group.last - 1) * size;
    transpose_rows(rows, lanes, size, to, lanes);
  }
  void scatter(const Group& group, int64_t tile, int64_t size, const T* from, T* to) const {
    T* rows[lanes];
    for (int64_t lane = 0; lane < lanes; lane++) {
      const int64_t sample = sample_at(group, tile, lane);
      rows[lane] = sample < 0 ? nullptr : to + sample * size;
    }
    transpose_columns(from, lanes, lanes, size, rows);
  }

 private:
  Range own_samples(int thread, int present) const {
    const Range examples = part_of(votes.examples, thread, present);
    return {examples.first * votes.windows, examples.last * votes.windows};
  }
};

// Poses and factors of all slots of a group.
template <class T, int NV>
struct PackedGroup {
  using Plan = SoftmaxPlan<T, NV>;
  T *poses, *factors, *nobody;

  static PackedGroup take(const Plan& plan, Arena::Frame& frame) {
    const int64_t slots = plan.group_tiles * plan.votes.slots;
    return {frame.take<T>(slots * plan.tile_poses()), frame.take<T>(slots * Plan::lanes),
            frame.zeros<T>(plan.shape.pose_size())};
  }
  void fill(const Plan& plan, const Group& group, const Range& slots) const {
    for (int64_t tile = 0; tile < group.tiles; tile++)
      for (int64_t n = slots.first; n < slots.last; n++)
        plan.pack(group, tile, n, nobody, pose(plan, tile, n), factor(plan, tile, n));
  }
  T* pose(const Plan& plan, int64_t tile, int64_t slot) const {
    return poses + (tile * plan.votes.slots + slot) * plan.tile_poses();
  }
  T* factor(const Plan& plan, int64_t tile, int64_t slot) const {
    return factors + (tile * plan.votes.slots + slot) * Plan::lanes;
  }
};

// Sums (and masses) that each member of a team collects and that are then added up.
template <class T, int NV>
struct PartialSums {
  using Plan = SoftmaxPlan<T, NV>;
  T *sums, *masses;

  static PartialSums take(const Plan& plan, Arena::Frame& frame) {
    const int64_t count = plan.team_size() * plan.group_tiles;
    return {frame.take<T>(count * plan.tile_votes()), frame.take<T>(count * plan.tile_parents())};
  }
  T* sum(const Plan& plan, int64_t rank, int64_t tile) const {
    return sums + (rank * plan.group_tiles + tile) * plan.tile_votes();
  }
  T* mass(const Plan& plan, int64_t rank, int64_t tile) const {
    return masses + (rank * plan.group_tiles + tile) * plan.tile_parents();
  }
  void clear(const Plan& plan, const Group& group, int64_t rank) const {
    std::fill_n(sum(plan, rank, 0), group.tiles * plan.tile_votes(), T(0));
    std::fill_n(mass(plan, rank, 0), group.tiles * plan.tile_parents(), T(0));
  }
  // Adds up what the team collected for one tile, in the order of the ranks, into the part of rank 0.
  void reduce(const Plan& plan, const Team& team, int64_t tile) const {
    for (int64_t rank = 1; rank < team.size; rank++) {
      add(plan.tile_votes(), sum(plan, rank, tile), sum(plan, 0, tile));
      add(plan.tile_parents(), mass(plan, rank, tile), mass(plan, 0, tile));
    }
  }

 private:
  static void add(int64_t count, const T* from, T* to) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
  }
};

// What one thread needs to route one slot of one tile.
template <class T, int NV>
struct SlotScratch {
  using Plan = SoftmaxPlan<T, NV>;
  T *votes, *couplings, *slopes, *base, *scaled_poses;

  static SlotScratch take(const Plan& plan, Arena::Frame& frame) {
    return {frame.take<T>(plan.tile_votes()), frame.take<T>(plan.tile_parents()), frame.take<T>(plan.tile_parents()),
            frame.zeros<T>(plan.shape.votes_size()), frame.take<T>(Plan::slot_block * plan.tile_poses())};
  }
};

}  // namespace torchcaps
