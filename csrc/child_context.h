// Routing child by child: what EM routing and the softmax routings across windows share.
//
// SIMD lanes are parent types: J is padded to `vectors` registers. All per-window quantities lie as
// [window][vector][entry] registers, so that the work on one register of parents touches contiguous memory. A child is
// visited together with all windows that see it, so that everything a softmax normalises is at hand; its votes are
// formed, used and forgotten.
#pragma once
#include <algorithm>
#include <limits>

#include "abi.h"
#include "child_plan.h"
#include "child_votes.h"
#include "competition.h"
#include "crew.h"
#include "lanes.h"
#include "scratch.h"

namespace torchcaps {
namespace by_child {

// Children of one window that are worked on together: sums are loaded and stored once for all of them.
constexpr int block = 8;

// Sizes in registers.
template <class T>
struct Layout {
  int vectors;       // registers of parents
  int size;          // D
  int64_t windows;   // S

  explicit Layout(const Votes<T>& votes)
      : vectors(int((votes.parents + Simd<T>::width - 1) / Simd<T>::width)),
        size(int(votes.vote_size())),
        windows(votes.windows) {}

  int64_t entries() const { return int64_t(vectors) * size; }  // registers of one (window, D) quantity
};

// Where the votes of a slot are measured from: the given centre, less the bias and the offset of the slot.
template <class T>
inline const Vec<T>* slot_centre(const Votes<T>& votes, const Layout<T>& layout, const Vec<T>* packed_bias,
                                 int64_t slot, const Vec<T>* centre, Vec<T>* buffer) {
  if (!packed_bias && !votes.offset) return centre;
  const Vec<T>* bias = packed_bias ? packed_bias + votes.transform_at(slot) * layout.entries() : nullptr;
  const T* offset = votes.offset ? votes.offset + slot * layout.size : nullptr;
  for (int v = 0; v < layout.vectors; v++) {
    for (int h = 0; h < layout.size; h++) {
      Vec<T> x = centre[v * layout.size + h];
      if (bias) x -= bias[v * layout.size + h];
      if (offset) x -= offset[h];
      buffer[v * layout.size + h] = x;
    }
  }
  return buffer;
}

// [J][count] -> [vectors][count] registers, padding lanes 0.
template <class T>
inline void pack_parents(const T* source, int64_t parents, int64_t count, int vectors, Vec<T>* target) {
  constexpr int width = Simd<T>::width;
  for (int v = 0; v < vectors; v++, target += count) {
    const int lanes = int(std::min<int64_t>(width, parents - v * width));
    const T* rows[width];
    for (int lane = 0; lane < lanes; lane++) rows[lane] = source + (v * width + lane) * count;
    if (lanes < width) std::fill_n(target, count, Vec<T>{});
    transpose_rows<T>(rows, lanes, count, reinterpret_cast<T*>(target), width);
  }
}

// The way back, from registers to [J][count]; there may be more registers to a vector than are wanted.
template <class T>
inline void unpack_parents(const Vec<T>* source, int64_t parents, int64_t count, int vectors, T* target,
                           int64_t registers = 0) {
  constexpr int width = Simd<T>::width;
  for (int v = 0; v < vectors; v++, source += registers ? registers : count) {
    T* rows[width] = {};
    for (int lane = 0; lane < width && v * width + lane < parents; lane++)
      rows[lane] = target + (v * width + lane) * count;
    transpose_columns<T>(reinterpret_cast<const T*>(source), width, width, count, rows);
  }
}

// [transforms][J][count] -> [transforms][vectors][count] registers.
template <class T>
inline void pack_transforms(Crew& crew, const T* source, int64_t transforms, int64_t parents, int64_t count,
                            int vectors, Vec<T>* target) {
  const int64_t blocks = between(1, transforms * parents * count / least_entries, transforms);
  crew.run(blocks, [&](int64_t block, int) {
    const Range own = part_of(transforms, block, blocks);
    for (int64_t k = own.first; k < own.last; k++)
      pack_parents<T>(source + k * parents * count, parents, count, vectors, target + k * vectors * count);
  });
}

// The logits of `Block` children in `count` windows that compete, [count][Block][vectors], become couplings times
// the scale of the child; `log_totals`, if given, takes the logs of the sums of exponentials. A leak is one more
// parent with logit 0, whose share is dropped. `Numbers` is int, or a constant where the compiler knows the numbers.
template <int Block, class Numbers, class T>
inline __attribute__((always_inline)) void softmax(Vec<T>* logits, Numbers count, Numbers vectors, const T* scale,
                                                   T* log_totals, bool leaky) {
  Vec<T> rows[Block];
  T largest[Block], sums[Block];
  for (int m = 0; m < Block; m++) {
    Vec<T> top = logits[m * vectors];
    for (int k = 0; k < count; k++)
      for (int v = 0; v < vectors; v++) top = max(top, logits[(k * Block + m) * vectors + v]);
    rows[m] = top;
  }
  combine_lanes<T>(rows, Block, Max(), largest);
  if (leaky)
    for (int m = 0; m < Block; m++) largest[m] = std::max(largest[m], T(0));
  for (int m = 0; m < Block; m++) {
    Vec<T> total{};
    for (int k = 0; k < count; k++) {
      Vec<T>* row = logits + (k * Block + m) * vectors;
      for (int v = 0; v < vectors; v++) total += row[v] = exp_of_negative(row[v] - largest[m]);
    }
    rows[m] = total;
  }
  combine_lanes<T>(rows, Block, Add(), sums);
  if (leaky)
    for (int m = 0; m < Block; m++) sums[m] += std::exp(-largest[m]);
  for (int m = 0; m < Block; m++) {
    const T factor = scale[m] / sums[m];
    for (int k = 0; k < count; k++)
      for (int v = 0; v < vectors; v++) logits[(k * Block + m) * vectors + v] *= factor;
  }
  if (log_totals)
    for (int m = 0; m < Block; m++) log_totals[m] = largest[m] + std::log(sums[m]);
}

template <int Block, class T>
inline void softmax(Vec<T>* logits, int count, int vectors, const T* scale, T* log_totals, bool leaky = false) {
  using One = std::integral_constant<int, 1>;
  if (count == 1 && vectors == 1) return softmax<Block, One, T>(logits, One(), One(), scale, log_totals, leaky);
  softmax<Block, int, T>(logits, count, vectors, scale, log_totals, leaky);
}

// The same where every parent type shares the child among the windows by itself: one softmax in each lane, with a leak
// of its own. The sum of their logs goes to `log_totals`. Lanes that are minus infinity in every window (padding)
// become 0; in the others a sum is at least 1.
template <int Block, class T>
inline void softmax_over_windows(Vec<T>* logits, int count, int vectors, const T* scale, T* log_totals,
                                 bool leaky = false) {
  const Vec<T> zero{}, one = zero + T(1), lowest = broadcast<T>(leaky ? T(0) : std::numeric_limits<T>::lowest());
  for (int m = 0; m < Block; m++) {
    Vec<T> logs{};
    for (int v = 0; v < vectors; v++) {
      Vec<T>* const column = logits + m * vectors + v;
      const int stride = Block * vectors;
      Vec<T> largest = lowest, total{};
      for (int k = 0; k < count; k++) largest = max(largest, column[k * stride]);
      for (int k = 0; k < count; k++) total += column[k * stride] = exp(column[k * stride] - largest);
      if (leaky) total += exp(-largest);
      const Vec<T> factor = scale[m] / max(total, one);
      for (int k = 0; k < count; k++) column[k * stride] *= factor;
      if (log_totals) logs += total < one ? zero : largest + log(max(total, one));
    }
    if (log_totals) log_totals[m] = sum_lanes<T>(logs);
  }
}

// A child as one example shows it.
template <class T>
struct Child {
  const T* pose;
  T activation;
  bool votes;  // false: masked
};

// Scratch of one thread for the unit it works on. `most` counts sights that compete with each other.
template <class T>
struct Bench {
  Vec<T>* delta;      // [most][block][vectors][D]
  Vec<T>* coupling;   // [most][block][vectors]
  Vec<T>* distance;   // [vectors]
  Vec<T>* centre;     // [vectors][D]
  Sight* sights;      // those of the unit whose windows exist
  Child<T> children[Plan::largest_unit];

  void take(Arena::Frame& frame, const Layout<T>& layout, int most_sights, int most) {
    // Loops over a bench count with int: a larger one is as good as not to be had.
    if (int64_t(most) * block * layout.entries() > largest_number) throw std::bad_alloc();
    delta = frame.take<Vec<T>>(std::size_t(most) * block * layout.entries());
    coupling = frame.take<Vec<T>>(std::size_t(most) * block * layout.vectors);
    distance = frame.take<Vec<T>>(layout.vectors);
    centre = frame.take<Vec<T>>(layout.entries());
    sights = frame.take<Sight>(most_sights);
  }
};

// The votes of one call: packed weights, the order of the children, tiles of examples.
template <class T, class Shape>
struct ChildContext {
  const Votes<T>& votes;
  const Layout<T> layout;
  const Shape shape;
  const Plan plan;
  const int threads;
  const bool global;         // all windows and types compete, once
  const bool position;       // all windows compete, once for each type
  const int most_competing;  // sights
  const T* const initial_logits;  // (B, S, N, J) of the first couplings, or null for equal shares
  Arena::Frame frame;
  const int64_t weight_registers;  // of one packed transformation
  Vec<T>* const weight;            // [transforms][vectors][inner * outer]
  Vec<T>* const bias;              // [transforms][vectors][D], or null
  const T* const no_pose;          // stands in for the poses of masked children, which may hold anything

  ChildContext(const Votes<T>& votes, int64_t competition, const T* initial_logits, int threads)
      : votes(votes),
        layout(votes),
        shape(votes),
        plan(votes),
        threads(std::max(1, threads)),
        global(competition == global_competition),
        position(competition == position_competition),
        most_competing(global || position ? plan.most_sights : 1),
        initial_logits(initial_logits),
        weight_registers(layout.vectors * votes.inner * votes.outer),
        weight(frame.template take<Vec<T>>(votes.transforms * weight_registers)),
        bias(votes.bias ? frame.template take<Vec<T>>(votes.transforms * layout.entries()) : nullptr),
        no_pose(frame.template zeros<T>(votes.pose_size())) {}

  void pack(Crew& crew) const {
    const int64_t weights = votes.inner * votes.outer;
    pack_transforms<T>(crew, votes.weight, votes.transforms, votes.parents, weights, layout.vectors, weight);
    if (bias) pack_transforms<T>(crew, votes.bias, votes.transforms, votes.parents, layout.size, layout.vectors, bias);
  }

  // The sizes of the layout where the compiler knows them.
  int vectors() const { return shape.vectors; }
  int entries() const { return shape.vectors * shape.size; }

  const Vec<T>* weight_of(int64_t slot) const { return weight + votes.transform_at(slot) * weight_registers; }

  // How the work is cut: few examples are worked on by all hands together, one tile after the other, each pass over the
  // children in pieces; of many, every block is worked on by one worker by itself.
  struct Cut {
    int64_t tile;    // examples worked on together, so that weights are read once for all of them
    int64_t pieces;  // of a pass
    int64_t blocks;  // of examples, 0 where hands work together
    int64_t parts() const { return blocks ? blocks : pieces; }
    int64_t tiles(int threads) const { return blocks ? threads : 1; }  // at the same time, numbered by worker
  };

  // `collected` bytes are what a pass gathers for each example in every piece, `kept` what a block keeps of all its
  // examples.
  Cut cut(int64_t bytes_per_example, int64_t collected, int64_t kept) const {
    constexpr int64_t budget = int64_t(1) << 20;
    const int64_t tile = between(1, budget / std::max<int64_t>(1, bytes_per_example), std::max<int64_t>(1, votes.examples));
    const int64_t entries = int64_t(plan.sights.size()) * layout.entries() * Simd<T>::width;  // of one example
    if (votes.examples < few_examples) {
      const int64_t pieces = pieces_for(tile * entries, tile * collected + kept);
      return {tile, between(1, pieces, int64_t(plan.units.size())), 0};
    }
    // a block starts from zeros and is added to the others: that should cost little beside its votes
    const int64_t worthwhile = votes.examples * entries * int64_t(sizeof(T)) / (16 * std::max<int64_t>(1, kept));
    const int64_t affordable = most_parts_bytes / std::max<int64_t>(1, kept);
    const int64_t most = between(2, std::min(affordable, std::max(worthwhile, few_examples)), 2 * most_pieces);
    const int64_t blocks = between(std::min(most, most_pieces), votes.examples / tile, most);
    return {tile, 1, std::min(blocks, votes.examples)};
  }

  // Calls body(hands, first example, last example, part, home) on tiles that cover all examples: `home` numbers the
  // memory of a tile, `part` that in which a block gathers what is kept. Pieces have parts of their own.
  template <class Body>
  void for_tiles(Crew& crew, const Cut& cut, Body&& body) const {
    const auto cover = [&](const Hands& hands, const Range& own, int64_t part, int64_t home) {
      for (int64_t first = own.first; first < own.last; first += cut.tile)
        body(hands, first, std::min(first + cut.tile, own.last), part, home);
    };
    if (!cut.blocks) return cover(Hands{&crew, 0, cut.pieces}, {0, votes.examples}, 0, 0);
    crew.run(cut.blocks, [&](int64_t block, int worker) {
      cover(Hands{&crew, worker, 1}, part_of(votes.examples, block, cut.blocks), block, worker);
    });
  }

  // Fills the bench with what an example shows of a unit; returns the number of sights that exist.
  int look(const Unit& unit, int64_t example, Bench<T>& bench) const {
    bool any = false;
    for (int m = 0; m < unit.count; m++) {
      const int64_t at = example * votes.children + unit.child + m;
      Child<T>& child = bench.children[m];
      child.votes = votes.child_votes(example, unit.child + m);
      child.pose = child.votes ? votes.poses + at * votes.pose_size() : no_pose;
      child.activation = !child.votes ? T(0) : votes.activations ? votes.activations[at] : T(1);
      any |= child.votes;
    }
    int count = 0;
    for (int64_t k = unit.first; any && k < unit.last; k++)
      if (votes.window_exists(example, plan.sights[k].window)) bench.sights[count++] = plan.sights[k];
    return count;
  }

  // Calls body with the sights that compete with each other: all of them, or each on its own.
  template <class Body>
  void for_competitions(int num_sights, Body&& body) const {
    const int together = global || position ? num_sights : 1;
    for (int k = 0; k < num_sights; k += together) body(k, together);
  }

  // Calls body(integral constant Block, offset) for the blocks of a unit.
  template <class Body>
  static void for_blocks(int count, Body&& body) {
    int offset = 0;
    for (; offset + block <= count; offset += block) body(std::integral_constant<int, block>(), offset);
    for (; offset + 4 <= count; offset += 4) body(std::integral_constant<int, 4>(), offset);
    for (; offset < count; offset++) body(std::integral_constant<int, 1>(), offset);
  }

  // delta = votes - centre of the children [offset, offset + Block) in one window.
  template <int Block>
  void centre_votes(Bench<T>& bench, const Sight& sight, int offset, const Vec<T>* centre, Vec<T>* delta) const {
    for (int m = 0; m < Block; m++) {
      const int64_t slot = sight.slot + offset + m;
      const Vec<T>* from = slot_centre(votes, layout, bias, slot, centre, bench.centre);
      centred_votes<false, T>(shape, bench.children[offset + m].pose, weight_of(slot), from, nullptr,
                              vectors(), delta + m * entries(), nullptr);
    }
  }

  // Where the logits, or the couplings, of a child in a window lie: J of them in an array (B, S, N, J).
  int64_t coupling_at(int64_t example, const Sight& sight, int child) const {
    return ((example * votes.windows + sight.window) * votes.slots + sight.slot + child) * votes.parents;
  }

  // A register of the initial logits; lanes without a parent are minus infinity. Those of masked children are not
  // read: they may hold anything.
  Vec<T> initial_logits_at(const Bench<T>& bench, int64_t example, const Sight& sight, int child, int v) const {
    constexpr int width = Simd<T>::width;
    const T* const from = initial_logits + coupling_at(example, sight, child);
    const bool votes_here = bench.children[child].votes;
    Vec<T> x;
    for (int lane = 0; lane < width; lane++) {
      const int64_t j = v * width + lane;
      x[lane] = j >= votes.parents ? -std::numeric_limits<T>::infinity() : votes_here ? from[j] : T(0);
    }
    return x;
  }

  // bench.coupling[count][Block][vectors], which holds logits, becomes couplings times the scale of the child.
  template <int Block>
  void compete(Bench<T>& bench, int count, const T* scale, T* log_totals = nullptr, bool leaky = false) const {
    if (position)
      softmax_over_windows<Block, T>(bench.coupling, count, vectors(), scale, log_totals, leaky);
    else
      softmax<Block, T>(bench.coupling, count, vectors(), scale, log_totals, leaky);
  }
};

// Runs body with a null pointer to the shape that fits.
template <class T, class Body>
void with_shape(const Votes<T>& votes, Body&& body) {
  if (MatrixShape<1>::fits(votes)) return body(static_cast<MatrixShape<1>*>(nullptr));
  if (MatrixShape<0>::fits(votes)) return body(static_cast<MatrixShape<0>*>(nullptr));
  body(static_cast<AnyShape*>(nullptr));
}

}  // namespace by_child
}  // namespace torchcaps
