// How a softmax routing is cut into work: tiles of samples, groups of tiles, teams of threads.
//
// A group of tiles is routed from start to end before the next one begins, so scratch memory does not grow
// with the batch. Work is split in one of two ways:
//   - by slots: the whole crew works on a group, each piece of the slots collects sums of its own, and these are added up
//     after every pass; where every slot has weights of its own, a piece owns the gradients of these weights too;
//   - by samples: a worker takes a block of examples and goes through all of its groups by itself.
// The cut depends on the problem alone, each number is found by one worker or summed in a fixed order, so results repeat
// bit for bit with any number of threads.
#pragma once
#include <algorithm>

#include "abi.h"
#include "crew.h"
#include "scratch.h"
#include "softmax_kernels.h"
#include "softmax_options.h"
#include "softmax_tile.h"
#include "softmax_update.h"
#include "votes.h"

namespace torchcaps {

// The tiles that are routed together: samples [first, last), `tiles` of them lane by lane.
struct Group {
  int64_t first, last, tiles;
};

template <class T, int NV>
class SoftmaxPlan {
 public:
  static constexpr int lanes = Lanes<T, NV>::count;
  static constexpr int64_t slot_block = 8;                          // slots that visit a tile in a row
  static constexpr int64_t coefficient_bytes = int64_t(24) << 20;   // of a group, in the backward pass
  static constexpr int64_t num_groups = 4;                          // that share these, where each worker has its own
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
    const bool own_weights = !votes.transform && !votes.child && votes.slots >= 16 * slot_block;
    splits_slots = own_weights || votes.examples < 2 || tiles < 8 || weight_bytes > largest_shared_weight;
    const int64_t per_tile = (splits_slots ? 1 : num_groups) * 2 * (options.iterations - 1) * votes.slots *
                                 votes.parents * lanes * int64_t(sizeof(T)) + 1;
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

  // The pieces of the slots, where each collects this much beside its sums.
  int64_t num_pieces(int64_t collected) const {
    if (!splits_slots) return 1;
    const int64_t sums = group_tiles * (tile_votes() + tile_parents()) * int64_t(sizeof(T));
    return std::min(pieces_for(samples * votes.slots * shape.votes_size(), sums + collected), slot_blocks());
  }

  // The blocks of examples that are worked on by themselves: as many as fill their tiles nearly as well as all examples
  // together, and no more than what each of them collects is worth.
  int64_t num_blocks(int64_t collected) const {
    const int64_t tiles = (samples + lanes - 1) / lanes;
    int64_t blocks = std::min(votes.examples, pieces_for(samples * votes.slots * shape.votes_size(), collected));
    for (; blocks > 2; blocks--) {
      int64_t needed = 0;
      for (int64_t block = 0; block < blocks; block++)
        needed += (part_of(votes.examples, block, blocks).size() * votes.windows + lanes - 1) / lanes;
      if (32 * needed <= 33 * tiles) break;
    }
    return blocks;
  }

  // Calls body(hands, group, part, home) for every group: `part` numbers the block it belongs to, `home` the memory of
  // the worker.
  template <class Body>
  void for_each_group(Crew& crew, int64_t pieces, int64_t blocks, Body&& body) const {
    const auto cover = [&](const Hands& hands, const Range& own, int64_t part) {
      for (int64_t first = own.first; first < own.last; first += group_tiles * lanes) {
        const int64_t last = std::min(own.last, first + group_tiles * lanes);
        body(hands, Group{first, last, (last - first + lanes - 1) / lanes}, part, hands.worker);
      }
    };
    if (splits_slots) return cover(Hands{&crew, 0, pieces}, {0, samples}, 0);
    crew.run(blocks, [&](int64_t block, int worker) {
      const Range examples = part_of(votes.examples, block, blocks);
      cover(Hands{&crew, worker, 1}, {examples.first * votes.windows, examples.last * votes.windows}, block);
    });
  }
  int num_homes() const { return splits_slots ? 1 : threads; }

  // Calls body(piece, worker, slots) for the pieces of the slots.
  template <class Body>
  void share_slots(const Hands& hands, Body&& body) const {
    hands.share(slot_blocks(), [&](int64_t piece, int who, const Range& blocks) {
      body(piece, who, Range{blocks.first * slot_block, std::min(blocks.last * slot_block, votes.slots)});
    });
  }
  // Calls body(worker, tile) for the tiles of a group.
  template <class Body>
  void share_tiles(const Hands& hands, const Group& group, Body&& body) const {
    hands.share(group.tiles, [&](int64_t, int who, const Range& tiles) {
      for (int64_t tile = tiles.first; tile < tiles.last; tile++) body(who, tile);
    });
  }

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
  int64_t slot_blocks() const { return (votes.slots + slot_block - 1) / slot_block; }
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

// Sums (and masses) that each piece of the slots collects and that are then added up.
template <class T, int NV>
struct PartialSums {
  using Plan = SoftmaxPlan<T, NV>;
  T *sums, *masses;
  int64_t pieces;

  static PartialSums take(const Plan& plan, int64_t pieces, Arena::Frame& frame) {
    const int64_t count = pieces * plan.group_tiles;
    return {frame.take<T>(count * plan.tile_votes()), frame.take<T>(count * plan.tile_parents()), pieces};
  }
  T* sum(const Plan& plan, int64_t piece, int64_t tile) const {
    return sums + (piece * plan.group_tiles + tile) * plan.tile_votes();
  }
  T* mass(const Plan& plan, int64_t piece, int64_t tile) const {
    return masses + (piece * plan.group_tiles + tile) * plan.tile_parents();
  }
  void clear(const Plan& plan, const Group& group, int64_t piece) const {
    std::fill_n(sum(plan, piece, 0), group.tiles * plan.tile_votes(), T(0));
    std::fill_n(mass(plan, piece, 0), group.tiles * plan.tile_parents(), T(0));
  }
  // Adds up what was collected for one tile, in the order of the pieces, into the place of the first.
  void reduce(const Plan& plan, int64_t tile) const {
    for (int64_t piece = 1; piece < pieces; piece++) {
      add(plan.tile_votes(), sum(plan, piece, tile), sum(plan, 0, tile));
      add(plan.tile_parents(), mass(plan, piece, tile), mass(plan, 0, tile));
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
