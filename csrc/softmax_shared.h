// Softmax routings in which all children share one transformation per parent.
//
// The products can then be regrouped so that no vote is formed, not even in a register:
//
//     <W_j u_i, q_j> = <u_i, W_j q_j>        sum_i c_ij W_j u_i = W_j (sum_i c_ij u_i)
//
// A slot costs J K products for its logits and J K for its share of the sums instead of J K D for its votes. Queries and
// sums are taken through W once per sample and iteration. With A_j = sum_i c_ij u_i, Q_j = W_j q_j, G the gradient of
// the sums and W_j G_j written P_j, the backward pass is that of softmax_backward.h in these terms:
//
//     slope_ij = <u_i, P_j>     d Q_j = sum_i h_ij u_i     d u_i = sum_j c_ij P_j + h_ij Q_j
//     d W_j    = sum_t A_j (x) G_j + d Q_j (x) q_j
#pragma once
#include <vector>

#include "softmax_backward.h"
#include "softmax_shared_steps.h"

namespace torchcaps {

// One tile of samples at a time; in the backward pass each block of examples collects gradients of its own.
template <class T, int NV>
class SoftmaxShared {
  using Plan = SoftmaxPlan<T, NV>;
  static constexpr int lanes = Plan::lanes, width = Simd<T>::width;
  static constexpr int slots_at_once = 2;

 public:
  explicit SoftmaxShared(const Plan& plan)
      : plan_(plan),
        last_(plan.options.iterations - 1),
        earliest_(plan.options.detach ? last_ : 0),
        parents_(plan.shape.parents),
        inner_(plan.shape.inner),
        outer_(plan.shape.outer) {}

  // Where a slot is one of few, or samples do not fill tiles, nothing is gained.
  bool takes() const {
    const Votes<T>& votes = plan_.votes;
    return votes.transforms == 1 && votes.rows == 1 && !votes.bias && !votes.offset &&
           plan_.options.algorithm != kmeans_euclidean && votes.slots >= 8 && plan_.samples >= 4 * lanes;
  }

  // As SoftmaxForward::run.
  void forward(T* out, T* sums) {
    Arena::Frame frame;
    std::vector<Scratch> workers;
    for (int i = 0; i < plan_.threads; i++) workers.push_back(Scratch::take(*this, frame, false));
    const int64_t tiles = (plan_.samples + lanes - 1) / lanes, blocks = std::min(tiles, 2 * most_pieces);
    Crew::work(plan_.threads, [&](Crew& crew) {
      crew.run(blocks, [&](int64_t block, int who) {
        const Range own = part_of(tiles, block, blocks);
        for_each_tile({own.first * lanes, std::min(own.last * lanes, plan_.samples)},
                      [&](const Group& tile) { route(workers[who], tile, out, sums); });
      });
    });
  }

  // As SoftmaxBackward::run.
  void backward(const T* sums, const T* grad_out, const SoftmaxGradients<T>& gradients) {
    Arena::Frame frame;
    std::vector<Scratch> workers;
    for (int i = 0; i < plan_.threads; i++) workers.push_back(Scratch::take(*this, frame, true));
    std::vector<T*> parts(plan_.num_blocks(num_weights() * int64_t(sizeof(T))));
    for (T*& part : parts) part = frame.take<T>(num_weights());
    const int64_t blocks = int64_t(parts.size());
    Crew::work(plan_.threads, [&](Crew& crew) {
      crew.run(blocks, [&](int64_t block, int who) {
        const Range own = part_of(plan_.votes.examples, block, blocks);
        const auto clear = [&](T* target, int64_t count) {
          if (target) std::fill_n(target + own.first * count, own.size() * count, T(0));
        };
        clear(gradients.poses, plan_.votes.children * inner_);
        clear(gradients.activations, plan_.votes.children);
        std::fill_n(parts[block], num_weights(), T(0));
        workers[who].grad_weight = parts[block];
        for_each_tile({own.first * plan_.votes.windows, own.last * plan_.votes.windows},
                      [&](const Group& tile) { differentiate(workers[who], tile, sums, grad_out, gradients); });
      });
    });
    if (!gradients.weight) return;
    std::copy_n(parts[0], num_weights(), gradients.weight);
    for (int64_t block = 1; block < blocks; block++)
      for (int64_t w = 0; w < num_weights(); w++) gradients.weight[w] += parts[block][w];
  }

 private:
  int64_t num_weights() const { return parents_ * inner_ * outer_; }
  int64_t votes_size() const { return parents_ * outer_ * lanes; }  // of queries and sums, [parent][entry][lane]
  int64_t vectors_size() const { return parents_ * inner_ * lanes; }  // of what is compared with poses
  int64_t padded_outer() const { return padded(outer_, width); }

  struct Scratch {
    T *poses, *factors, *nobody;                     // [slot][entry][lane], [slot][lane]
    T *query, *sum, *out, *mass;                     // [parent][entry][lane]; mass is never read
    T *projected, *collected;                        // Q and A, [parent][child's entry][lane]
    T *couplings, *slopes;                           // [slot at once][parent][lane]
    T *sums, *queries, *grad_sum, *grad_previous, *grad_query, *step, *centre;
    T *projected_gradient, *grad_projected;          // P and d Q
    T *pose_gradients, *grad_factors, *turned, *row;
    T *grad_weight;                                  // of the block of examples at hand

    static Scratch take(const SoftmaxShared& self, Arena::Frame& frame, bool with_gradients) {
      const int64_t slots = self.plan_.votes.slots, votes = self.votes_size(), vectors = self.vectors_size();
      const int64_t iterations = with_gradients ? self.last_ + 1 : 0, one = with_gradients ? 1 : 0;
      const int64_t some = slots_at_once * self.parents_ * lanes;
      return {frame.take<T>(slots * self.inner_ * lanes),
              frame.take<T>(slots * lanes),
              frame.zeros<T>(self.inner_),
              frame.take<T>(votes),
              frame.take<T>(votes),
              frame.take<T>(votes),
              frame.zeros<T>(self.parents_ * lanes),
              frame.take<T>(vectors),
              frame.take<T>(vectors),
              frame.take<T>(some),
              frame.take<T>(some),
              frame.take<T>(iterations * votes),
              frame.take<T>(iterations * votes),
              frame.take<T>(one * votes),
              frame.take<T>(one * votes),
              frame.take<T>(one * votes),
              frame.take<T>(one * votes),
              frame.take<T>(one * self.outer_ * lanes),
              frame.take<T>(one * vectors),
              frame.take<T>(one * vectors),
              frame.take<T>(one * slots * self.inner_ * lanes),
              frame.take<T>(one * slots * lanes),
              frame.zeros<T>(one * lanes * self.padded_outer()),
              frame.take<T>(one * lanes * self.inner_),
              nullptr};
    }
  };

  template <class Body>
  void for_each_tile(const Range& samples, Body&& body) const {
    for (int64_t first = samples.first; first < samples.last; first += lanes)
      body(Group{first, std::min<int64_t>(samples.last, first + lanes), 1});
  }

  // body(first slot, constant count) for all slots.
  template <class Body>
  void for_each_block(Body&& body) const {
    int64_t n = 0;
    for (; n + slots_at_once <= plan_.votes.slots; n += slots_at_once)
      body(n, std::integral_constant<int, slots_at_once>());
    for (; n < plan_.votes.slots; n++) body(n, std::integral_constant<int, 1>());
  }

  T* pose(const Scratch& scratch, int64_t slot) const { return scratch.poses + slot * inner_ * lanes; }

  void pack(const Scratch& scratch, const Group& tile) const {
    for (int64_t n = 0; n < plan_.votes.slots; n++)
      plan_.pack(tile, 0, n, scratch.nobody, pose(scratch, n), scratch.factors + n * lanes);
  }

  // Vectors of the votes' space from those of the children's, and back.
  void to_votes(const T* from, T* to) const {
    for (int64_t j = 0; j < parents_; j++)
      transform_lanes<T, NV>(inner_, outer_, from + j * inner_ * lanes, weight(j), outer_, 1, to + j * outer_ * lanes);
  }
  void to_children(const T* from, T* to) const {
    for (int64_t j = 0; j < parents_; j++)
      transform_lanes<T, NV>(outer_, inner_, from + j * outer_ * lanes, weight(j), 1, outer_, to + j * inner_ * lanes);
  }
  const T* weight(int64_t j) const { return plan_.votes.weight + j * inner_ * outer_; }

  // A of the first iteration: every parent has its share of one plain sum.
  void collect_uniform(const Scratch& scratch) const {
    T* const total = scratch.collected;
    std::fill_n(total, inner_ * lanes, T(0));
    for (int64_t n = 0; n < plan_.votes.slots; n++)
      for (int64_t k = 0; k < inner_; k++)
        for (int lane = 0; lane < lanes; lane++)
          total[k * lanes + lane] += pose(scratch, n)[k * lanes + lane] * scratch.factors[n * lanes + lane];
    for (int64_t j = parents_ - 1; j >= 0; j--) {
      const T share = plan_.competition.uniform_share(j);
      for (int64_t i = 0; i < inner_ * lanes; i++) scratch.collected[j * inner_ * lanes + i] = total[i] * share;
    }
  }

  // --- Forward ---------------------------------------------------------------------------------------------

  void route(const Scratch& scratch, const Group& tile, T* out, T* sums) const {
    const int64_t size = plan_.shape.votes_size();
    pack(scratch, tile);
    std::fill_n(scratch.query, votes_size(), T(0));
    for (int64_t t = 0; t <= last_; t++) {
      if (t == 0)
        collect_uniform(scratch);
      else
        collect_routed(scratch);
      to_votes(scratch.collected, scratch.sum);
      plan_.scatter(tile, 0, size, scratch.sum, sums + t * plan_.samples * size);
      if (t == last_) break;
      plan_.update.next_query(t, scratch.sum, scratch.mass, scratch.query);
      to_children(scratch.query, scratch.projected);
    }
    plan_.update.output(scratch.sum, scratch.mass, scratch.out);
    plan_.scatter(tile, 0, size, scratch.out, out);
  }

  void collect_routed(const Scratch& scratch) const {
    std::fill_n(scratch.collected, vectors_size(), T(0));
    for_each_block([&](int64_t n, auto count_tag) {
      constexpr int count = decltype(count_tag)::value;
      pose_agreement<T, NV, count>(parents_, inner_, pose(scratch, n), scratch.projected, scratch.couplings);
      for (int s = 0; s < count; s++)
        plan_.competition.template softmax<NV>(scratch.couplings + s * parents_ * lanes, plan_.logit_scale,
                                               scratch.factors + (n + s) * lanes);
      add_weighted_poses<T, NV, count>(parents_, inner_, scratch.couplings, pose(scratch, n), scratch.collected);
    });
  }

  // --- Backward --------------------------------------------------------------------------------------------

  T* at(T* array, int64_t t) const { return array + t * votes_size(); }

  void differentiate(const Scratch& scratch, const Group& tile, const T* sums, const T* grad_out,
                     const SoftmaxGradients<T>& gradients) const {
    pack(scratch, tile);
    start(scratch, tile, sums, grad_out);
    T *grad_sum = scratch.grad_sum, *grad_previous = scratch.grad_previous;
    for (int64_t t = last_; t >= std::max<int64_t>(earliest_, 1); t--) {
      to_children(at(scratch.queries, t), scratch.projected);
      to_children(grad_sum, scratch.projected_gradient);
      differentiate_slots(scratch);
      add_weight_gradient(scratch, scratch.collected, grad_sum);
      if (plan_.options.detach) break;
      add_weight_gradient(scratch, scratch.grad_projected, at(scratch.queries, t));
      to_votes(scratch.grad_projected, scratch.step);
      for (int64_t i = 0; i < votes_size(); i++)
        scratch.grad_query[i] = (plan_.update.accumulates() ? scratch.grad_query[i] : T(0)) + scratch.step[i];
      if (T* const told = gradients.queries_at(t, plan_.samples * plan_.shape.votes_size()))
        plan_.scatter(tile, 0, plan_.shape.votes_size(), scratch.grad_query, told);
      plan_.update.next_query_backward(t - 1, at(scratch.sums, t - 1), scratch.mass, scratch.grad_query, grad_previous,
                                       scratch.mass);
      std::swap(grad_sum, grad_previous);
    }
    if (earliest_ == 0) differentiate_uniform(scratch, grad_sum);
    if (gradients.poses) scatter_poses(scratch, tile, gradients.poses);
    if (gradients.activations && !plan_.options.detach) scatter_activations(scratch, tile, gradients.activations);
  }

  // Restores sums and queries of one tile, and takes the output's gradient to the last sums.
  void start(const Scratch& scratch, const Group& tile, const T* sums, const T* grad_out) const {
    const int64_t size = plan_.shape.votes_size(), slots = plan_.votes.slots;
    std::fill_n(scratch.queries, votes_size(), T(0));
    for (int64_t t = 0; t <= last_; t++) {
      plan_.gather(tile, 0, size, sums + t * plan_.samples * size, at(scratch.sums, t));
      if (t == 0) continue;
      std::copy_n(at(scratch.queries, t - 1), votes_size(), at(scratch.queries, t));
      plan_.update.next_query(t - 1, at(scratch.sums, t - 1), scratch.mass, at(scratch.queries, t));
    }
    plan_.gather(tile, 0, size, grad_out, scratch.out);
    plan_.update.output_backward(at(scratch.sums, last_), scratch.mass, scratch.out, scratch.grad_sum, scratch.mass,
                                 scratch.centre);
    std::fill_n(scratch.grad_query, votes_size(), T(0));
    std::fill_n(scratch.pose_gradients, slots * inner_ * lanes, T(0));
    std::fill_n(scratch.grad_factors, slots * lanes, T(0));
  }

  // From Q and P of one iteration to A, d Q and what the iteration adds to the gradients of poses and factors.
  void differentiate_slots(const Scratch& scratch) const {
    std::fill_n(scratch.collected, vectors_size(), T(0));
    std::fill_n(scratch.grad_projected, vectors_size(), T(0));
    for_each_block([&](int64_t n, auto count_tag) {
      constexpr int count = decltype(count_tag)::value;
      pose_agreement<T, NV, count>(parents_, inner_, pose(scratch, n), scratch.projected, scratch.couplings);
      pose_agreement<T, NV, count>(parents_, inner_, pose(scratch, n), scratch.projected_gradient, scratch.slopes);
      for (int s = 0; s < count; s++) differentiate_softmax(scratch, n + s, s);
      add_weighted_poses<T, NV, count>(parents_, inner_, scratch.couplings, pose(scratch, n), scratch.collected);
      T* const gradients = scratch.pose_gradients + n * inner_ * lanes;
      if (plan_.options.detach)
        return add_pose_gradients<T, NV, count, false>(parents_, inner_, scratch.couplings, scratch.projected_gradient,
                                                       nullptr, nullptr, gradients);
      add_weighted_poses<T, NV, count>(parents_, inner_, scratch.slopes, pose(scratch, n), scratch.grad_projected);
      add_pose_gradients<T, NV, count, true>(parents_, inner_, scratch.couplings, scratch.projected_gradient,
                                             scratch.slopes, scratch.projected, gradients);
    });
  }

  // Logits and slopes of a slot become c and h.
  void differentiate_softmax(const Scratch& scratch, int64_t slot, int place) const {
    T* const couplings = scratch.couplings + place * parents_ * lanes;
    T* const slopes = scratch.slopes + place * parents_ * lanes;
    plan_.competition.template softmax<NV>(couplings, plan_.logit_scale);
    for (int v = 0; v < lanes; v += width) {
      Vec<T> mean = {};
      for (int64_t j = 0; j < parents_; j++) mean += load(couplings + j * lanes + v) * load(slopes + j * lanes + v);
      T* const grad_factor = scratch.grad_factors + slot * lanes + v;
      store(grad_factor, load(grad_factor) + mean);
      const Vec<T> factor = load(scratch.factors + slot * lanes + v);
      for (int64_t j = 0; j < parents_; j++) {
        const Vec<T> c = load(couplings + j * lanes + v) * factor;
        store(slopes + j * lanes + v, c * (load(slopes + j * lanes + v) - mean));
        store(couplings + j * lanes + v, c);
      }
    }
  }

  void differentiate_uniform(const Scratch& scratch, const T* grad_sum) const {
    collect_uniform(scratch);
    add_weight_gradient(scratch, scratch.collected, grad_sum);
    to_children(grad_sum, scratch.projected_gradient);
    T* const shared = scratch.projected;  // sum_j share_j P_j
    for (int64_t i = 0; i < inner_ * lanes; i++) {
      T total = 0;
      for (int64_t j = 0; j < parents_; j++)
        total += plan_.competition.uniform_share(j) * scratch.projected_gradient[j * inner_ * lanes + i];
      shared[i] = total;
    }
    for (int64_t n = 0; n < plan_.votes.slots; n++) {
      T* const gradients = scratch.pose_gradients + n * inner_ * lanes;
      T* const grad_factors = scratch.grad_factors + n * lanes;
      const T* const factors = scratch.factors + n * lanes;
      for (int64_t k = 0; k < inner_; k++)
        for (int lane = 0; lane < lanes; lane++) {
          gradients[k * lanes + lane] += factors[lane] * shared[k * lanes + lane];
          grad_factors[lane] += pose(scratch, n)[k * lanes + lane] * shared[k * lanes + lane];
        }
    }
  }

  // d W_jkd += sum over lanes of vectors_jk gradient_jd. Lanes without a sample have vectors of zeros.
  void add_weight_gradient(const Scratch& scratch, const T* vectors, const T* gradient) const {
    const int64_t row_size = padded_outer();
    T* rows[lanes];
    for (int lane = 0; lane < lanes; lane++) rows[lane] = scratch.turned + lane * row_size;
    for (int64_t j = 0; j < parents_; j++) {
      transpose_columns(gradient + j * outer_ * lanes, lanes, lanes, outer_, rows);
      for (int64_t k = 0; k < inner_; k++) {
        const T* const x = vectors + (j * inner_ + k) * lanes;
        T* const to = scratch.grad_weight + (j * inner_ + k) * outer_;
        for (int64_t e = 0; e < row_size; e += width) {
          Vec<T> total = {};
          for (int lane = 0; lane < lanes; lane++) total += x[lane] * load(rows[lane] + e);
          put_entries(to + e, total, outer_ - e, Write::add);
        }
      }
    }
  }

  void scatter_poses(const Scratch& scratch, const Group& tile, T* target) const {
    T* rows[lanes];
    for (int lane = 0; lane < lanes; lane++) rows[lane] = scratch.row + lane * inner_;
    for (int64_t n = 0; n < plan_.votes.slots; n++) {
      transpose_columns(scratch.pose_gradients + n * inner_ * lanes, lanes, lanes, inner_, rows);
      for (int lane = 0; lane < lanes; lane++) {
        const int64_t to = plan_.voter(plan_.sample_at(tile, 0, lane), n);
        if (to < 0) continue;
        for (int64_t k = 0; k < inner_; k++) target[to * inner_ + k] += rows[lane][k];
      }
    }
  }

  void scatter_activations(const Scratch& scratch, const Group& tile, T* target) const {
    for (int64_t n = 0; n < plan_.votes.slots; n++)
      for (int lane = 0; lane < lanes; lane++) {
        const int64_t to = plan_.voter(plan_.sample_at(tile, 0, lane), n);
        if (to >= 0) target[to] += scratch.grad_factors[n * lanes + lane];
      }
  }

  const Plan& plan_;
  const int64_t last_, earliest_;  // iterations that carry gradients
  const int64_t parents_, inner_, outer_;
};

}  // namespace torchcaps
