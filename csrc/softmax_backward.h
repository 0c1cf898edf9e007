// Exact backward pass of the softmax routings, unrolled through all iterations.
//
// With G_t the gradient of the sums of iteration t, c the couplings, p the softmax without the factor of the
// child, q the queries:
//
//     slope_ij  = <vote_ij, G_j>  (+ gradient of the mass)      gradient of c_ij
//     h_ij      = c_ij (slope_ij - sum_k p_ik slope_ik)         gradient of the logits
//     d q_j     = sum_i h_ij vote_ij                            and from it G_{t-1}, by the update's backward
//     d vote_ij = sum_t c_ij G_j + h_ij q_j                     two terms for every iteration but the first
//
// Votes are formed again for every iteration; c and h of one group of tiles are kept until all G are known, and
// one last sweep over the slots turns them into the gradients of poses and weights.
#pragma once
#include <vector>

#include "softmax_plan.h"

namespace torchcaps {

template <class T, int NV>
class SoftmaxBackward {
  using Plan = SoftmaxPlan<T, NV>;
  using Slot = SlotScratch<T, NV>;
  static constexpr int lanes = Plan::lanes;
  static constexpr int width = Simd<T>::width;
  static constexpr int64_t largest_cached_gradient = int64_t(32) << 20;

 public:
  SoftmaxBackward(const Plan& plan, const T* sums, const T* masses, const T* grad_out)
      : plan_(plan),
        sums_(sums),
        masses_(masses),
        grad_out_(grad_out),
        last_(plan.options.iterations - 1),
        earliest_(plan.options.detach ? last_ : 0) {}

  void run(const SoftmaxGradients<T>& gradients) {
    Arena::Frame frame;
    prepare_targets(gradients, frame);
    for (int i = 0; i < plan_.num_homes(); i++) homes_.push_back(Home::take(*this, frame));
    for (int i = 0; i < plan_.threads; i++) workers_.push_back(Worker::take(*this, frame));
    Crew::work(plan_.threads, [&](Crew& crew) {
      const int64_t parts = int64_t(targets_.size());
      crew.run(parts, [&](int64_t part, int) { clear_targets(part, parts); });
      plan_.for_each_group(crew, pieces_, blocks_,
                           [&](const Hands& hands, const Group& group, int64_t part, int64_t home) {
                             differentiate(homes_[home], &targets_[part], hands, group);
                           });
      crew.run(parts, [&](int64_t part, int) { merge_targets(part, parts); });
    });
  }

 private:
  // Terms of the gradient of a vote: the first iteration, then (c, h) of each later one; detached only the last c.
  int64_t num_terms() const { return last_ == 0 ? 1 : plan_.options.detach ? 2 : 1 + 2 * last_; }
  int64_t padded_vote() const { return plan_.shape.rows * padded(plan_.shape.outer, width); }
  int64_t padded_pose() const { return plan_.shape.rows * padded(plan_.shape.inner, width); }
  bool is_euclidean() const { return plan_.options.algorithm == kmeans_euclidean; }

  // What a group is worked on in.
  struct Home {
    PackedGroup<T, NV> packed;
    PartialSums<T, NV> partial;
    T *sums, *masses, *queries, *grad_sums, *grad_masses;  // [iteration][tile]...
    T *grad_query, *grad_out;                              // [tile][parent][entry][lane]
    T *coefficients;                                       // [tile][slot][parent][term - 1][lane]
    T *vectors;                                            // [tile][parent][lane][term][padded vote]
    T *grad_factors;                                       // [tile][slot][lane]

    static Home take(const SoftmaxBackward& self, Arena::Frame& frame) {
      const Plan& plan = self.plan_;
      const int64_t tiles = plan.group_tiles, iterations = plan.options.iterations, terms = self.num_terms();
      const int64_t votes = tiles * plan.tile_votes(), parents = tiles * plan.tile_parents();
      return {PackedGroup<T, NV>::take(plan, frame),
              PartialSums<T, NV>::take(plan, self.pieces_, frame),
              frame.take<T>(iterations * votes),
              frame.take<T>(iterations * parents),
              frame.take<T>(iterations * votes),
              frame.take<T>(iterations * votes),
              frame.take<T>(iterations * parents),
              frame.take<T>(votes),
              frame.take<T>(votes),
              frame.take<T>((terms - 1) * plan.votes.slots * parents),
              frame.take<T>(terms * parents * self.padded_vote()),
              frame.take<T>(tiles * plan.votes.slots * lanes)};
    }
  };

  // What a thread works with.
  struct Worker {
    Slot slot;
    T *centre;          // (vote size, lanes), for the update
    T *vote_gradients;  // [slot at once][tile][lane][padded vote]
    T *pose_gradients;  // [slot at once][tile][lane][padded pose]
    T *turned, *filled, *filled_base, *weights_of_votes;

    static Worker take(const SoftmaxBackward& self, Arena::Frame& frame) {
      const Plan& plan = self.plan_;
      const VoteShape& shape = plan.shape;
      const int64_t samples = plan.group_tiles * lanes;
      return {Slot::take(plan, frame),
              frame.take<T>(shape.vote_size() * lanes),
              frame.take<T>(slots_at_once * samples * self.padded_vote()),
              frame.take<T>(slots_at_once * samples * self.padded_pose()),
              frame.zeros<T>(shape.outer * padded(shape.inner, width)),
              frame.zeros<T>(shape.inner * padded(shape.outer, width)),
              frame.zeros<T>(self.padded_vote()),
              frame.take<T>(samples)};
    }
  };

  // --- Where gradients are collected -----------------------------------------------------------------------

  // Pieces, or blocks, that could meet in one element get a copy each; the copies are added up in their order.
  void prepare_targets(const SoftmaxGradients<T>& gradients, Arena::Frame& frame) {
    gradients_ = gradients;
    own_weights_ = plan_.splits_slots && !plan_.votes.transform;
    own_children_ = !plan_.splits_slots || !plan_.votes.child;
    int64_t copied = 0;
    if (gradients.poses && !own_children_) copied += num_poses();
    if (gradients.weight && !own_weights_) copied += num_weights();
    if (gradients.bias && !own_weights_) copied += num_biases();
    if (gradients.activations && !own_children_) copied += num_activations();
    pieces_ = plan_.num_pieces(copied * int64_t(sizeof(T)));
    blocks_ = plan_.num_blocks(copied * int64_t(sizeof(T)));
    for (int64_t part = 0; part < (plan_.splits_slots ? pieces_ : blocks_); part++) {
      const auto target = [&](T* given, bool owned, int64_t count) {
        return !given || owned || part == 0 ? given : frame.take<T>(count);
      };
      targets_.push_back({target(gradients.poses, own_children_, num_poses()),
                          target(gradients.weight, own_weights_, num_weights()),
                          target(gradients.bias, own_weights_, num_biases()),
                          target(gradients.activations, own_children_, num_activations()),
                          nullptr});  // queries belong to one sample each: nothing is collected
    }
    if (gradients.poses) prefer_huge_pages(gradients.poses, num_poses() * sizeof(T));
    if (gradients.weight) prefer_huge_pages(gradients.weight, num_weights() * sizeof(T));
  }

  int64_t num_poses() const { return num_activations() * plan_.shape.pose_size(); }
  int64_t num_weights() const { return plan_.votes.transforms * plan_.shape.weight_size(); }
  int64_t num_biases() const { return plan_.votes.transforms * plan_.shape.votes_size(); }
  int64_t num_activations() const { return plan_.votes.examples * plan_.votes.children; }

  void clear_targets(int64_t part, int64_t parts) const {
    const SoftmaxGradients<T>& target = targets_[part];
    const auto clear = [&](T* to, bool owned, int64_t count) {
      if (!to) return;
      const Range own = owned ? part_of(count, part, parts) : Range{0, count};
      std::fill(to + own.first, to + own.last, T(0));
    };
    clear(target.poses, own_children_, num_poses());
    if (!own_weights_) clear(target.weight, false, num_weights());  // owners overwrite theirs
    clear(target.bias, own_weights_, num_biases());
    clear(target.activations, own_children_, num_activations());
  }

  void merge_targets(int64_t part, int64_t parts) const {
    const auto merge = [&](T* SoftmaxGradients<T>::*member, bool owned, int64_t count) {
      T* const to = gradients_.*member;
      if (!to || owned) return;
      const Range own = part_of(count, part, parts);
      for (int64_t other = 1; other < parts; other++) {
        const T* const from = targets_[other].*member;
        for (int64_t i = own.first; i < own.last; i++) to[i] += from[i];
      }
    };
    merge(&SoftmaxGradients<T>::poses, own_children_, num_poses());
    merge(&SoftmaxGradients<T>::weight, own_weights_, num_weights());
    merge(&SoftmaxGradients<T>::bias, own_weights_, num_biases());
    merge(&SoftmaxGradients<T>::activations, own_children_, num_activations());
  }

  // The first group overwrites the gradients of weights that a piece owns. If it is also the last, and the
  // gradients are far larger than the caches, they need not pass through them.
  Write how_to_write(const Group& group) const {
    if (!own_weights_ || group.first > 0) return Write::add;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(gradients_.weight) % (width * sizeof(T)) == 0;
    const bool is_large = num_weights() * int64_t(sizeof(T)) > largest_cached_gradient;
    return is_aligned && is_large && group.last == plan_.samples && plan_.shape.outer % width == 0 ? Write::stream
                                                                                                   : Write::put;
  }

  // --- One group -------------------------------------------------------------------------------------------

  // `targets` are those of the pieces.
  void differentiate(const Home& scratch, const SoftmaxGradients<T>* targets, const Hands& hands, const Group& group) {
    plan_.share_slots(hands, [&](int64_t, int, const Range& own) {
      scratch.packed.fill(plan_, group, own);
      for (int64_t tile = 0; tile < group.tiles; tile++)
        std::fill_n(grad_factor(scratch, tile, own.first), own.size() * lanes, T(0));
    });
    plan_.share_tiles(hands, group, [&](int who, int64_t tile) { start(scratch, workers_[who], group, tile); });
    for (int64_t t = last_; t >= std::max<int64_t>(earliest_, 1); t--) {
      plan_.share_slots(hands, [&](int64_t piece, int who, const Range& own) {
        scratch.partial.clear(plan_, group, piece);
        for (int64_t first = own.first; first < own.last; first += Plan::slot_block)
          for (int64_t tile = 0; tile < group.tiles; tile++)
            for (int64_t n = first; n < std::min(own.last, first + Plan::slot_block); n++)
              differentiate_slot(scratch, workers_[who].slot, piece, t, n, tile);
      });
      if (plan_.options.detach) break;
      plan_.share_tiles(hands, group, [&](int, int64_t tile) { step_back(scratch, group, t, tile); });
    }
    plan_.share_tiles(hands, group, [&](int, int64_t tile) { collect_vectors(scratch, tile); });
    plan_.share_slots(hands, [&](int64_t piece, int who, const Range& own) {
      sweep(scratch, workers_[who], targets[piece], group, own);
    });
  }

  void sweep(const Home& scratch, Worker& worker, const SoftmaxGradients<T>& target, const Group& group,
             const Range& own) {
    const bool activations = target.activations && !plan_.options.detach;
    for (int64_t n = own.first; activations && n < own.last; n++)
      for (int64_t tile = 0; tile < group.tiles; tile++) differentiate_first_factor(scratch, worker.slot, n, tile);
    for (int64_t n = own.first; n < own.last;) {
      const int64_t count = own.last - n >= slots_at_once ? slots_at_once : 1;
      sweep_slots(scratch, worker, target, group, n, count);
      n += count;
    }
    if (activations) scatter_activations(scratch, target, group, own);
    finish_streaming();
  }

  T* at(T* array, int64_t t, int64_t tile) const { return array + (t * plan_.group_tiles + tile) * plan_.tile_votes(); }
  T* mass_at(T* array, int64_t t, int64_t tile) const {
    return array + (t * plan_.group_tiles + tile) * plan_.tile_parents();
  }
  // Coefficient of a term for one slot and tile, by lane; the next parent's is `parent_stride()` further.
  T* coefficient(const Home& scratch, int64_t tile, int64_t slot, int64_t term) const {
    return scratch.coefficients + (tile * plan_.votes.slots + slot) * slot_stride() + (term - 1) * lanes;
  }
  int64_t parent_stride() const { return (num_terms() - 1) * lanes; }
  int64_t slot_stride() const { return plan_.shape.parents * parent_stride(); }
  T* grad_factor(const Home& scratch, int64_t tile, int64_t slot) const {
    return scratch.grad_factors + (tile * plan_.votes.slots + slot) * lanes;
  }
  T* vectors(const Home& scratch, int64_t tile, int64_t parent) const {
    return scratch.vectors + (tile * plan_.shape.parents + parent) * lanes * num_terms() * padded_vote();
  }
  int64_t coupling_term(int64_t t) const { return plan_.options.detach ? 1 : 2 * t - 1; }
  int64_t logit_term(int64_t t) const { return 2 * t; }

  // Restores sums and queries of one tile, and takes the output's gradient to the last sums.
  void start(const Home& scratch, Worker& worker, const Group& group, int64_t tile) {
    const int64_t size = plan_.shape.votes_size(), parents = plan_.shape.parents;
    for (int64_t t = 0; t <= last_; t++) {
      plan_.gather(group, tile, size, sums_ + t * plan_.samples * size, at(scratch.sums, t, tile));
      if (is_euclidean())
        plan_.gather(group, tile, parents, masses_ + t * plan_.samples * parents, mass_at(scratch.masses, t, tile));
      T* const query = at(scratch.queries, t, tile);
      if (t == 0) {
        std::fill_n(query, plan_.tile_votes(), T(0));
      } else {
        std::copy_n(at(scratch.queries, t - 1, tile), plan_.tile_votes(), query);
        plan_.update.next_query(t - 1, at(scratch.sums, t - 1, tile), mass_at(scratch.masses, t - 1, tile), query);
      }
    }
    T* const grad_out = at(scratch.grad_out, 0, tile);
    plan_.gather(group, tile, size, grad_out_, grad_out);
    plan_.update.output_backward(at(scratch.sums, last_, tile), mass_at(scratch.masses, last_, tile), grad_out,
                                 at(scratch.grad_sums, last_, tile), mass_at(scratch.grad_masses, last_, tile),
                                 worker.centre);
    std::fill_n(at(scratch.grad_query, 0, tile), plan_.tile_votes(), T(0));
  }

  // Couplings and gradients of the logits of one slot of one tile, and their share of the query's gradient.
  void differentiate_slot(const Home& scratch, Slot& slot, int64_t piece, int64_t t, int64_t n, int64_t tile) {
    const VoteShape& shape = plan_.shape;
    const T* const query = at(scratch.queries, t, tile);
    if (plan_.has_base()) plan_.fill_base(n, slot.base);
    plan_.kernels.votes_with_gradient(shape, scratch.packed.pose(plan_, tile, n), plan_.weight_of(n), slot.base, query,
                                      at(scratch.grad_sums, t, tile), slot.votes, slot.couplings, slot.slopes);
    plan_.competition.template softmax<NV>(slot.couplings, plan_.logit_scale);
    if (is_euclidean()) add_mass_slopes(mass_at(scratch.grad_masses, t, tile), slot.slopes);

    couplings_to_coefficients(scratch, slot, t, n, tile);
    if (plan_.options.detach) return;
    T* const grad_query = scratch.partial.sum(plan_, piece, tile);
    if (is_euclidean())
      add_weighted_differences<T, NV>(shape.parents, shape.vote_size(), slot.slopes, slot.votes, query, grad_query);
    else
      add_weighted<T, NV>(shape.parents, shape.vote_size(), slot.slopes, slot.votes, grad_query);
  }

  // Keeps c and h of one slot as coefficients; leaves h in the place of the slopes.
  void couplings_to_coefficients(const Home& scratch, Slot& slot, int64_t t, int64_t n, int64_t tile) {
    T* const couplings = coefficient(scratch, tile, n, coupling_term(t));
    T* const logits = plan_.options.detach ? nullptr : coefficient(scratch, tile, n, logit_term(t));
    T* const grad_factors = grad_factor(scratch, tile, n);
    for (int v = 0; v < lanes; v += width) {
      Vec<T> mean = {};
      for (int64_t j = 0; j < plan_.shape.parents; j++)
        mean += load(slot.couplings + j * lanes + v) * load(slot.slopes + j * lanes + v);
      store(grad_factors + v, load(grad_factors + v) + mean);
      const Vec<T> factor = load(scratch.packed.factor(plan_, tile, n) + v);
      for (int64_t j = 0; j < plan_.shape.parents; j++) {
        const Vec<T> c = load(slot.couplings + j * lanes + v) * factor;
        const Vec<T> h = c * (load(slot.slopes + j * lanes + v) - mean);
        store(couplings + j * parent_stride() + v, c);
        if (logits) store(logits + j * parent_stride() + v, h);
        store(slot.slopes + j * lanes + v, h);
      }
    }
  }

  void add_mass_slopes(const T* grad_mass, T* slopes) const {
    for (int64_t i = 0; i < plan_.tile_parents(); i++) slopes[i] += grad_mass[i];
  }

  // The first iteration's couplings are uniform, but their factor (the child's activation) has a gradient.
  void differentiate_first_factor(const Home& scratch, Slot& slot, int64_t n, int64_t tile) {
    if (plan_.has_base()) plan_.fill_base(n, slot.base);
    plan_.kernels.votes_with_gradient(plan_.shape, scratch.packed.pose(plan_, tile, n), plan_.weight_of(n), slot.base,
                                      at(scratch.queries, 0, tile), at(scratch.grad_sums, 0, tile), slot.votes,
                                      slot.couplings, slot.slopes);
    if (is_euclidean()) add_mass_slopes(mass_at(scratch.grad_masses, 0, tile), slot.slopes);
    T* const grad_factors = grad_factor(scratch, tile, n);
    for (int64_t j = 0; j < plan_.shape.parents; j++)
      for (int lane = 0; lane < lanes; lane++)
        grad_factors[lane] += plan_.competition.uniform_share(j) * slot.slopes[j * lanes + lane];
  }

  // From the gradient of the query of iteration t to that of the sums of iteration t - 1.
  void step_back(const Home& scratch, const Group& group, int64_t t, int64_t tile) {
    scratch.partial.reduce(plan_, tile);
    const T* const collected = scratch.partial.sum(plan_, 0, tile);
    T* const grad_query = at(scratch.grad_query, 0, tile);
    const T scale = is_euclidean() ? T(2 * plan_.options.inverse_temperature) : T(1);
    for (int64_t i = 0; i < plan_.tile_votes(); i++)
      grad_query[i] = (plan_.update.accumulates() ? grad_query[i] : T(0)) + scale * collected[i];
    if (T* const told = gradients_.queries_at(t, plan_.samples * plan_.shape.votes_size()))
      plan_.scatter(group, tile, plan_.shape.votes_size(), grad_query, told);
    plan_.update.next_query_backward(t - 1, at(scratch.sums, t - 1, tile), mass_at(scratch.masses, t - 1, tile),
                                     grad_query, at(scratch.grad_sums, t - 1, tile),
                                     mass_at(scratch.grad_masses, t - 1, tile));
  }

  // --- The last sweep --------------------------------------------------------------------------------------

  // The vectors of all terms of one tile, turned so that their entries lie side by side.
  void collect_vectors(const Home& scratch, int64_t tile) {
    const T pull = is_euclidean() ? T(2 * plan_.options.inverse_temperature) : T(1);
    for (int64_t j = 0; j < plan_.shape.parents; j++) {
      const T share = earliest_ == 0 ? plan_.competition.uniform_share(j) : T(0);
      fill_term(scratch, tile, j, 0, at(scratch.grad_sums, earliest_, tile), share);
      for (int64_t t = std::max<int64_t>(earliest_, 1); t <= last_; t++) {
        fill_term(scratch, tile, j, coupling_term(t), at(scratch.grad_sums, t, tile), T(1));
        if (!plan_.options.detach) fill_term(scratch, tile, j, logit_term(t), at(scratch.queries, t, tile), pull);
      }
    }
  }

  void fill_term(const Home& scratch, int64_t tile, int64_t parent, int64_t term, const T* from, T scale) const {
    const VoteShape& shape = plan_.shape;
    const int64_t row_size = padded(shape.outer, width);
    const T* const source = from + parent * shape.vote_size() * lanes;
    T* const first = vectors(scratch, tile, parent) + term * padded_vote();
    for (int64_t row = 0; row < shape.rows; row++) {
      T* to[lanes];
      for (int64_t lane = 0; lane < lanes; lane++) to[lane] = first + lane * num_terms() * padded_vote() + row * row_size;
      transpose_columns(source + row * shape.outer * lanes, lanes, lanes, shape.outer, to);
      for (int64_t lane = 0; lane < lanes; lane++) {
        for (int64_t e = 0; e < shape.outer; e++) to[lane][e] *= scale;
        std::fill(to[lane] + shape.outer, to[lane] + row_size, T(0));
      }
    }
  }

  // Gradients of `count` slots (slots_at_once or 1), from all parents and samples of the group.
  void sweep_slots(const Home& scratch, Worker& worker, const SoftmaxGradients<T>& target,
                   const Group& group, int64_t first, int64_t count) {
    const VoteShape& shape = plan_.shape;
    const int64_t samples = group.tiles * lanes;
    std::fill_n(worker.pose_gradients, count * samples * padded_pose(), T(0));
    for (int64_t j = 0; j < shape.parents; j++) {
      for (int64_t tile = 0; tile < group.tiles; tile++) form_vote_gradients(scratch, worker, first, count, tile, j, samples);
      for (int64_t s = 0; s < count; s++) {
        T* const gradients = worker.vote_gradients + s * samples * padded_vote();
        const SlotGradients<T> slot{samples, scratch.packed.pose(plan_, 0, first + s),
                                    plan_.votes.slots * plan_.tile_poses(), gradients};
        if (is_euclidean() && !plan_.options.detach) add_vote_terms(scratch, worker, slot, group, first + s, j, gradients);
        const int64_t block = plan_.votes.transform_at(first + s) * shape.parents + j;
        if (target.weight)
          plan_.kernels.weight_gradient(shape, slot, how_to_write(group), target.weight + block * shape.inner * shape.outer);
        if (target.bias) add_bias_gradient(shape, slot, target.bias + block * shape.vote_size());
        if (!target.poses) continue;
        turn_weight(plan_.weight_of(first + s) + j * shape.inner * shape.outer, worker.turned);
        plan_.kernels.pose_gradients(shape, slot, worker.turned, worker.pose_gradients + s * samples * padded_pose());
      }
    }
    if (!target.poses) return;
    for (int64_t s = 0; s < count; s++)
      scatter_poses(worker.pose_gradients + s * samples * padded_pose(), target, group, first + s);
  }

  void form_vote_gradients(const Home& scratch, Worker& worker, int64_t first, int64_t count,
                           int64_t tile, int64_t j, int64_t samples) const {
    const T* const coefficients = scratch.coefficients + (tile * plan_.votes.slots + first) * slot_stride() + j * parent_stride();
    // What the next parent needs comes from far away: ask for it early.
    constexpr int64_t line = 64 / int64_t(sizeof(T));
    const int64_t weight_size = plan_.shape.inner * plan_.shape.outer;
    for (int64_t s = 0; s < count; s++) {
      for (int64_t i = 0; i < parent_stride(); i += line)
        __builtin_prefetch(coefficients + s * slot_stride() + parent_stride() + i);
      if (tile > 0) continue;
      const T* const weight = plan_.weight_of(first + s) + (j + 1) * weight_size;
      for (int64_t i = 0; i < weight_size; i += line) __builtin_prefetch(weight + i);
    }
    const auto form = count == slots_at_once ? plan_.kernels.vote_gradients : plan_.kernels.one_vote_gradients;
    form(plan_.shape, num_terms(), vectors(scratch, tile, j), scratch.packed.factor(plan_, tile, first), coefficients,
         slot_stride(), worker.vote_gradients + tile * lanes * padded_vote(), samples * padded_vote());
  }

  // The euclidean logit -T |vote - q|^2 has the gradient 2 T (q - vote): the part of q is a term like the others,
  // the part of the vote needs the vote itself.
  void add_vote_terms(const Home& scratch, Worker& worker, const SlotGradients<T>& slot,
                      const Group& group, int64_t n, int64_t j, T* gradients) {
    const VoteShape& shape = plan_.shape;
    const int64_t row_size = padded(shape.outer, width);
    const T* const weight = plan_.weight_of(n) + j * shape.inner * shape.outer;
    for (int64_t k = 0; k < shape.inner; k++) std::copy_n(weight + k * shape.outer, shape.outer, worker.filled + k * row_size);
    if (plan_.has_base()) {
      plan_.fill_base(n, worker.slot.base);
      for (int64_t row = 0; row < shape.rows; row++)
        std::copy_n(worker.slot.base + j * shape.vote_size() + row * shape.outer, shape.outer,
                    worker.filled_base + row * row_size);
    }
    for (int64_t tile = 0; tile < group.tiles; tile++)
      for (int lane = 0; lane < lanes; lane++) {
        T total = 0;
        for (int64_t t = 1; t <= last_; t++) total += coefficient(scratch, tile, n, logit_term(t))[j * parent_stride() + lane];
        worker.weights_of_votes[tile * lanes + lane] = T(-2 * plan_.options.inverse_temperature) * total;
      }
    add_votes<T, NV>(shape, slot, worker.filled, worker.filled_base, worker.weights_of_votes, gradients);
  }

  void turn_weight(const T* weight, T* turned) const {
    const int64_t inner = plan_.shape.inner, outer = plan_.shape.outer, row_size = padded(inner, width);
    const T* rows[64];
    for (int64_t first = 0; first < inner; first += 64) {
      const int64_t count = std::min<int64_t>(64, inner - first);
      for (int64_t k = 0; k < count; k++) rows[k] = weight + (first + k) * outer;
      transpose_rows(rows, count, outer, turned + first, row_size);
    }
  }

  void scatter_poses(const T* pose_gradients, const SoftmaxGradients<T>& target, const Group& group, int64_t n) const {
    const VoteShape& shape = plan_.shape;
    const int64_t row_size = padded(shape.inner, width);
    for (int64_t sample = group.first; sample < group.last; sample++) {
      const int64_t to = plan_.voter(sample, n);
      if (to < 0) continue;
      const T* const from = pose_gradients + (sample - group.first) * padded_pose();
      for (int64_t row = 0; row < shape.rows; row++)
        for (int64_t v = 0; v < row_size; v += width)
          put_entries(target.poses + to * shape.pose_size() + row * shape.inner + v, load(from + row * row_size + v),
                      shape.inner - v, Write::add);
    }
  }

  void scatter_activations(const Home& scratch, const SoftmaxGradients<T>& target, const Group& group,
                           const Range& own) const {
    for (int64_t n = own.first; n < own.last; n++)
      for (int64_t sample = group.first; sample < group.last; sample++) {
        const int64_t to = plan_.voter(sample, n), index = sample - group.first;
        if (to >= 0) target.activations[to] += grad_factor(scratch, index / lanes, n)[index % lanes];
      }
  }

  const Plan& plan_;
  const T *sums_, *masses_, *grad_out_;
  const int64_t last_, earliest_;  // iterations that carry gradients
  SoftmaxGradients<T> gradients_;
  std::vector<SoftmaxGradients<T>> targets_;  // one for each piece, or each block
  std::vector<Home> homes_;
  std::vector<Worker> workers_;
  int64_t pieces_ = 1, blocks_ = 1;
  bool own_weights_ = false, own_children_ = false;
};

}  // namespace torchcaps
