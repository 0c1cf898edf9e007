// What forward, backward and couplings of EM routing share: first couplings, the E-step.
#pragma once
#include "em_mapping.h"

namespace torchcaps {
namespace em {

template <class T, class Shape>
struct Context : ChildContext<T, Shape> {
  using Base = ChildContext<T, Shape>;
  using Base::bias, Base::global, Base::initial_logits, Base::layout, Base::plan, Base::position, Base::shape;
  using Base::entries, Base::vectors, Base::votes, Base::weight_of;
  const EmOptions<T>& options;
  T* const inverse_mass;  // [B]: costs are multiplied by it
  Vec<T>* const worth;    // [C][vectors], or null
  const Mapping<T> mapping;

  Context(const Votes<T>& votes, const EmOptions<T>& options, int threads)
      : Base(votes, options.competition, options.initial_logits, threads),
        options(options),
        inverse_mass(this->frame.template take<T>(votes.examples)),
        worth(options.worth ? this->frame.template take<Vec<T>>(options.worth_types * layout.vectors) : nullptr),
        mapping(votes, options, layout, inverse_mass) {}

  void prepare(Crew& crew) const {
    const int64_t blocks = between(1, votes.examples * int64_t(plan.sights.size()) / least_entries, votes.examples);
    crew.run(blocks, [&](int64_t block, int) {
      const Range own = part_of(votes.examples, block, blocks);
      for (int64_t b = own.first; b < own.last; b++) inverse_mass[b] = options.scale_by_mass ? 1 / mean_mass(b) : T(1);
    });
    if (worth) pack_transforms<T>(crew, options.worth, options.worth_types, votes.parents, 1, layout.vectors, worth);
    this->pack(crew);
  }

  const Vec<T>* worth_of(int64_t slot) const { return worth + slot % options.worth_types * vectors(); }

  // The mass a parent of an example has on average under the first couplings, if every child has activation 1.
  T mean_mass(int64_t example) const {
    int64_t windows = 0, total = 0;
    for (int64_t s = 0; s < votes.windows; s++) windows += votes.window_exists(example, s);
    for (const Unit& unit : plan.units) {
      int seen = 0, children = 0;
      for (int64_t k = unit.first; k < unit.last; k++) seen += votes.window_exists(example, plan.sights[k].window);
      for (int m = 0; m < unit.count; m++) children += votes.child_votes(example, unit.child + m);
      total += children * first_couplings(seen);
    }
    return std::max(T(total) / T(std::max<int64_t>(1, windows * votes.parents)), T(smallest_mass));
  }

  // The sum of all first couplings of a child that `seen` windows see: one for each softmax.
  int64_t first_couplings(int seen) const {
    if (global) return std::min(seen, 1);
    return position && initial_logits ? std::min(seen, 1) * votes.parents : seen;
  }

  // The equal coupling of the first iteration; where types do not compete it is their share all the same.
  T equal_coupling(int num_sights) const { return T(1) / (votes.parents * (global ? num_sights : 1)); }

  // Fills bench.coupling[count][Block][vectors] with the first couplings R of an example.
  template <int Block>
  void first_step(Bench<T>& bench, int64_t example, const Sight* sights, int count, int offset, int num_sights) const {
    if (!initial_logits) {
      std::fill_n(bench.coupling, count * Block * vectors(), broadcast<T>(equal_coupling(num_sights)));
      return;
    }
    T ones[Block];
    std::fill_n(ones, Block, T(1));
    for (int k = 0; k < count; k++)
      for (int m = 0; m < Block; m++)
        for (int v = 0; v < vectors(); v++)
          bench.coupling[(k * Block + m) * vectors() + v] =
              this->initial_logits_at(bench, example, sights[k], offset + m, v);
    this->template compete<Block>(bench, count, ones);
  }

  // E-step of the children [offset, offset + Block) over `count` windows that compete: fills bench.delta with
  // votes - mean and bench.coupling with R, or with R a if they are to be weighted. `gaussians` are those that the
  // M-step of iteration `t` found for the example; `log_totals`, if given, takes the log of the sum over the parents
  // that compete of (a p)^T for each child, T the inverse temperature; under position competition summed over types.
  template <int Block>
  void e_step(Bench<T>& bench, const Vec<T>* gaussians, int64_t t, const Sight* sights, int count, int offset,
              bool weighted, T* log_totals = nullptr) const {
    const int vectors = this->vectors();
    const T sharp = T(options.inverse_temperature[t]);
    for (int k = 0; k < count; k++) {
      const Gaussians<T> window(const_cast<Vec<T>*>(gaussians) + sights[k].window * Gaussians<T>::registers(layout),
                                layout);
      for (int m = 0; m < Block; m++) {
        const int64_t slot = sights[k].slot + offset + m;
        const int at = k * Block + m;
        const Vec<T>* from = slot_centre(votes, layout, bias, slot, window.mean, bench.centre);
        centred_votes<true, T>(shape, bench.children[offset + m].pose, weight_of(slot), from, window.precision,
                               vectors, bench.delta + at * entries(), bench.distance);
        for (int v = 0; v < vectors; v++)
          bench.coupling[at * vectors + v] = sharp * (window.prior[v] - T(0.5) * bench.distance[v]);
      }
    }
    T scale[Block];
    for (int m = 0; m < Block; m++) scale[m] = weighted ? bench.children[offset + m].activation : T(1);
    this->template compete<Block>(bench, count, scale, log_totals);
  }
};

// Refuses what would make a kernel read outside its memory, or count further than an int goes.
template <class T>
void check(const Votes<T>& votes, const EmOptions<T>& options) {
  torchcaps::check(votes);
  using Options = EmOptions<T>;
  require(options.mapping >= Options::mdl && options.mapping <= Options::mass);
  const bool vb = options.mapping == Options::vb, heinsen = options.mapping == Options::heinsen;
  if (options.mapping == Options::mdl || options.mapping == Options::entropy || vb)
    require(options.beta_a && options.beta_u);
  require(heinsen == (options.worth && options.threshold));
  if (heinsen) require(options.worth_types >= 1 && votes.slots % options.worth_types == 0);
  if (vb) {
    require(options.prior_alpha > 0 && options.prior_kappa > 0 && options.prior_psi > 0 && options.damping == 0);
    require(options.prior_nu > double(votes.vote_size() - 1));
  }
  require(options.sharpness && options.iterations >= 1 && options.variance_epsilon > 0);
  if (options.mapping == Options::mass) require(options.iterations == 1);  // its Gaussians have no weights
  require(options.inverse_temperature);
  for (int64_t t = 0; t < options.iterations; t++) require(options.inverse_temperature[t] > 0);
  require(options.damping >= 0 && options.damping < 1);
  require(options.competition >= 0 && options.competition <= 2);
  // Inner loops number what one window needs (the lines of the backward are most), a pose and a weight with int.
  const int64_t padded_parents = votes.parents + Simd<T>::width;
  require(votes.pose_size() <= largest_number && votes.inner * votes.outer <= largest_number);
  require(padded_parents * votes.vote_size() <= largest_number / (4 * options.iterations));
}

}  // namespace em
}  // namespace torchcaps
