// What forward, backward and couplings of EM routing share: packed weights, tiles of examples, the E-step.
#pragma once
#include <omp.h>

#include <algorithm>

#include "abi.h"
#include "em_plan.h"
#include "em_steps.h"
#include "em_votes.h"
#include "scratch.h"

namespace torchcaps {
namespace em {

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

template <class T, class Shape>
struct Context {
  const Votes<T>& votes;
  const EmOptions<T>& options;
  const Layout<T> layout;
  const Shape shape;
  const Plan plan;
  const int threads;
  const bool global;         // all windows and types compete, once
  const bool position;       // all windows compete, once for each type
  const int most_competing;  // sights
  Arena::Frame frame;
  const int64_t weight_registers;  // of one packed transformation
  Vec<T>* const weight;            // [transforms][vectors][inner * outer]
  Vec<T>* const bias;              // [transforms][vectors][D], or null
  T* const inverse_mass;           // [B]: costs are multiplied by it
  const T* const no_pose;          // stands in for the poses of masked children, which may hold anything

  Context(const Votes<T>& votes, const EmOptions<T>& options, int threads)
      : votes(votes),
        options(options),
        layout(votes),
        shape(votes),
        plan(votes),
        threads(std::max(1, threads)),
        global(options.competition == EmOptions<T>::global),
        position(options.competition == EmOptions<T>::position),
        most_competing(global || position ? plan.most_sights : 1),
        weight_registers(layout.vectors * votes.inner * votes.outer),
        weight(frame.template take<Vec<T>>(votes.transforms * weight_registers)),
        bias(votes.bias ? frame.template take<Vec<T>>(votes.transforms * layout.entries()) : nullptr),
        inverse_mass(frame.template take<T>(votes.examples)),
        no_pose(frame.template zeros<T>(votes.pose_size())) {}

  // To be called by all threads of a region.
  void prepare() const {
#pragma omp for schedule(static) nowait
    for (int64_t b = 0; b < votes.examples; b++) inverse_mass[b] = options.scale_by_mass ? 1 / mean_mass(b) : T(1);
    pack_lanes<T>(votes.weight, votes.transforms, votes.parents, votes.inner * votes.outer, layout.vectors, weight);
    if (bias) pack_lanes<T>(votes.bias, votes.transforms, votes.parents, layout.size, layout.vectors, bias);
  }

  // The mass a parent of an example has on average under the first couplings, if every child has activation 1.
  T mean_mass(int64_t example) const {
    int64_t windows = 0, total = 0;
    for (int64_t s = 0; s < votes.windows; s++) windows += votes.window_exists(example, s);
    for (const Unit& unit : plan.units) {
      int seen = 0, children = 0;
      for (int64_t k = unit.first; k < unit.last; k++) seen += votes.window_exists(example, plan.sights[k].window);
      for (int m = 0; m < unit.count; m++) children += votes.child_votes(example, unit.child + m);
      total += int64_t(children) * (global ? std::min(seen, 1) : seen);
    }
    return std::max(T(total) / T(std::max<int64_t>(1, windows * votes.parents)), T(smallest_mass));
  }

  const Vec<T>* weight_of(int64_t slot) const { return weight + votes.transform_at(slot) * weight_registers; }

  // How many examples are worked on together, so that weights are read once for all of them.
  int64_t tile_size(int64_t bytes_per_example) const {
    const int64_t budget = int64_t(1) << 20;
    const int64_t each = std::max<int64_t>(1, votes.examples / threads);
    return std::max<int64_t>(1, std::min(each, budget / std::max<int64_t>(1, bytes_per_example)));
  }

  // Calls body(team, first example, last example, home) on tiles that cover all examples; `home` is the thread
  // whose memory the team shares. As many examples as possible are done by threads on their own; the rest by
  // all of them together. To be called by all threads of a region.
  template <class Body>
  void for_tiles(int64_t tile, Body&& body) const {
    const int rank = omp_get_thread_num(), size = omp_get_num_threads();
    const int64_t each = votes.examples / size;
    for (int64_t first = rank * each; first < (rank + 1) * each; first += tile)
      body(Team{0, 1}, first, std::min(first + tile, (rank + 1) * each), rank);
    const Team all{rank, size};
    for (int64_t first = each * size; first < votes.examples; first += tile) {
      all.wait();
      body(all, first, std::min(first + tile, votes.examples), 0);
    }
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
    for (; offset < count; offset++) body(std::integral_constant<int, 1>(), offset);
  }

  // The uniform coupling of the first iteration; where types do not compete it is their share all the same.
  T first_coupling(int num_sights) const { return T(1) / (votes.parents * (global ? num_sights : 1)); }

  // delta = votes - centre of the children [offset, offset + Block) in one window.
  template <int Block>
  void centre_votes(Bench<T>& bench, const Sight& sight, int offset, const Vec<T>* centre, Vec<T>* delta) const {
    for (int m = 0; m < Block; m++) {
      const int64_t slot = sight.slot + offset + m;
      const Vec<T>* from = slot_centre(votes, layout, bias, slot, centre, bench.centre);
      centred_votes<false, T>(shape, bench.children[offset + m].pose, weight_of(slot), from, nullptr,
                              layout.vectors, delta + m * layout.entries(), nullptr);
    }
  }

  // E-step of the children [offset, offset + Block) over `count` windows that compete: fills bench.delta with
  // votes - mean and bench.coupling with R, or with R a if they are to be weighted. `gaussians` are those that the
  // M-step of iteration `t` found for the example; `log_totals`, if given, takes the log of the sum over the parents
  // that compete of (a p)^T for each child, T the inverse temperature; under position competition summed over types.
  template <int Block>
  void e_step(Bench<T>& bench, const Vec<T>* gaussians, int64_t t, const Sight* sights, int count, int offset,
              bool weighted, T* log_totals = nullptr) const {
    const int vectors = layout.vectors;
    const T sharp = T(options.inverse_temperature[t]);
    for (int k = 0; k < count; k++) {
      const Gaussians<T> window(const_cast<Vec<T>*>(gaussians) + sights[k].window * Gaussians<T>::registers(layout),
                                layout);
      for (int m = 0; m < Block; m++) {
        const int64_t slot = sights[k].slot + offset + m;
        const int at = k * Block + m;
        const Vec<T>* from = slot_centre(votes, layout, bias, slot, window.mean, bench.centre);
        centred_votes<true, T>(shape, bench.children[offset + m].pose, weight_of(slot), from, window.precision,
                               vectors, bench.delta + at * layout.entries(), bench.distance);
        for (int v = 0; v < vectors; v++)
          bench.coupling[at * vectors + v] = sharp * (window.prior[v] - T(0.5) * bench.distance[v]);
      }
    }
    T scale[Block];
    for (int m = 0; m < Block; m++) scale[m] = weighted ? bench.children[offset + m].activation : T(1);
    if (position)
      softmax_over_windows<Block, T>(bench.coupling, count, vectors, scale, log_totals);
    else
      softmax<Block, T>(bench.coupling, count, vectors, scale, log_totals);
  }
};

// Runs body<Shape>() with the shape that fits.
template <class T, class Body>
void with_shape(const Votes<T>& votes, Body&& body) {
  if (votes.rows == 4 && votes.inner == 4 && votes.outer == 4)
    body(static_cast<MatrixShape*>(nullptr));
  else
    body(static_cast<AnyShape*>(nullptr));
}

// Refuses what would make a kernel read outside its memory, or count further than an int goes.
template <class T>
void check(const Votes<T>& votes, const EmOptions<T>& options) {
  torchcaps::check(votes);
  require(options.beta_a && options.beta_u);
  require(options.sharpness && options.iterations >= 1 && options.variance_epsilon > 0);
  require(options.inverse_temperature);
  for (int64_t t = 0; t < options.iterations; t++) require(options.inverse_temperature[t] > 0);
  require(options.damping >= 0 && options.damping < 1);
  require(options.competition >= 0 && options.competition <= 2);
  require(options.activation >= 0 && options.activation <= 2);
  // Inner loops number what one window needs (the lines of the backward are most), a pose and a weight with int.
  const int64_t padded_parents = votes.parents + Simd<T>::width;
  require(votes.pose_size() <= largest_number && votes.inner * votes.outer <= largest_number);
  require(padded_parents * votes.vote_size() <= largest_number / (4 * options.iterations));
}

}  // namespace em
}  // namespace torchcaps
