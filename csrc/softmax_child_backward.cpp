// Exact backward pass of the softmax routings child by child, unrolled through all iterations.
//
// The derivation is that of softmax_backward.h: with G the gradient of the sums, c = p f the couplings (f the factor of
// the child), q the queries,
//
//     slope_ij  = <vote_ij, G_j>  (+ gradient of the mass)      gradient of c_ij
//     h_ij      = c_ij (slope_ij - sum_k p_ik slope_ik)         gradient of the logits, k over what one softmax holds
//     d q_j     = sum_i h_ij vote_ij                            and from it the G of the iteration before
//     d vote_ij = c_ij G_j + h_ij q_j                           spent at once, iteration by iteration
//     d initial_ij = h_ij of the first iteration                (dynamic routing: of all)
//
// Max-min couplings have another h: c = (b - low) / (high - low), so that with e = f slope / (high - low) it is e_ij, less
// sum_k e_ik (1 - c_ik) at the first parent with the smallest logit, less sum_k e_ik c_ik at the first with the largest.
#include <vector>

#include "child_gradients.h"
#include "softmax_child_context.h"

namespace torchcaps {
namespace by_child {
namespace {

template <class T, class Shape>
class SoftmaxChildBackward {
 public:
  SoftmaxChildBackward(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits, const T* sums,
                       const T* masses, const T* grad_out, const SoftmaxGradients<T>& gradients, T* grad_logits,
                       int threads)
      : context_(votes, options, initial_logits, threads),
        votes_(votes),
        layout_(context_.layout),
        sums_(sums),
        masses_(masses),
        grad_out_(grad_out),
        gradients_(gradients),
        grad_logits_(grad_logits),
        last_(options.iterations - 1),
        earliest_(options.detach ? last_ : 0),
        pull_(context_.euclidean ? T(2 * options.inverse_temperature) : T(1)),
        workers_(context_.threads) {
    const int64_t registers = (options.iterations + 2) * layout_.entries() + layout_.vectors;
    const int64_t per_window = registers * int64_t(sizeof(Vec<T>)) + context_.votes_size * int64_t(sizeof(T));
    tile_ = context_.tile_size(per_window * votes.windows);
    const int64_t windows = tile_ * votes.windows;
    for (Worker& worker : workers_) {
      worker.queries = take<Vec<T>>(options.iterations * windows * layout_.entries());
      worker.arriving = take<Vec<T>>(windows * arriving_size());
      worker.grad_query = take<T>(windows * context_.votes_size);
      worker.sums = take<Vec<T>>(windows * layout_.entries());
      worker.plain = take<T>(context_.votes_size);
      worker.mass = context_.frame.template zeros<T>(votes.parents);
      worker.centre = take<T>(layout_.size);
      worker.pose = take<T>(votes.pose_size());
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
      worker.at_hand.take(context_.frame, layout_, context_.most_competing);
      worker.logits = context_.max_min ? take<Vec<T>>(context_.most_competing * block * layout_.vectors) : nullptr;
      worker.collected.take(context_, gradients.poses, gradients.weight, gradients.bias);
    }
  }

  void run() {
#pragma omp parallel num_threads(context_.threads)
    {
      context_.pack();
      workers_[omp_get_thread_num()].collected.clear(context_);
      context_.for_tiles(tile_, [this](const Team& team, int64_t first, int64_t last, int home) {
        descend(team, first, last, home);
      });
#pragma omp barrier
      const int count = omp_get_num_threads();
      if (gradients_.weight)
        write_transforms<T>(votes_, layout_.vectors, count, votes_.inner * votes_.outer,
                            [&](int n) { return workers_[n].collected.weight; }, gradients_.weight);
      if (gradients_.bias)
        write_transforms<T>(votes_, layout_.vectors, count, layout_.size,
                            [&](int n) { return workers_[n].collected.bias; }, gradients_.bias);
    }
  }

 private:
  // The first three are shared by a team that works at home; windows of a tile are numbered through.
  struct Worker {
    Vec<T>* queries;   // [iterations][windows][vectors][D]
    Vec<T>* arriving;  // [windows]: the gradients of sums, [vectors][D], and of masses, [vectors], of iteration t
    T* grad_query;     // [windows][J][D]
    Vec<T>* sums;      // [windows][vectors][D]: what the children this worker visits give to the queries
    T *plain, *mass;   // (J, D) and (J), of one window
    T *centre, *pose;  // (D) and (R * K)
    Bench<T> bench;
    Responses<T> at_hand;
    Vec<T>* logits;    // [sights][block][vectors] of the children at hand, for max-min couplings
    Collected<T, Shape> collected;
  };

  int64_t arriving_size() const { return layout_.entries() + layout_.vectors; }
  Vec<T>* query(const Worker& worker, int64_t t, int64_t w) const {
    return worker.queries + (t * tile_ * votes_.windows + w) * layout_.entries();
  }
  T* grad_query(const Worker& worker, int64_t w) const { return worker.grad_query + w * context_.votes_size; }

  // All iterations, last to first, for the examples [first, last).
  void descend(const Team& team, int64_t first, int64_t last, int home) {
    Worker& shared = workers_[home];
    Worker& self = team.size > 1 ? workers_[team.rank] : shared;
    int64_t mine, end;
    team.share((last - first) * votes_.windows, mine, end);
    clear_children(team, first, last);
    for (int64_t w = mine; w < end; w++) start(shared, self, first * votes_.windows + w, w);
    for (int64_t t = last_;; t--) {
      team.wait();
      visit(team, first, last, shared, self, t);
      if (t == earliest_) break;
      team.wait();
      for (int64_t w = mine; w < end; w++) {
        gather(team, home, w);
        step_back(shared, self, first * votes_.windows + w, w, t);
      }
    }
    team.wait();
  }

  // Children that no window sees, and slots without a vote, get gradient 0.
  void clear_children(const Team& team, int64_t first, int64_t last) const {
    const auto clear = [&](T* target, int64_t per_example) {
      if (!target) return;
      int64_t begin, end;
      team.share((last - first) * per_example, begin, end);
      std::fill(target + first * per_example + begin, target + first * per_example + end, T(0));
    };
    clear(gradients_.poses, votes_.children * votes_.pose_size());
    clear(gradients_.activations, votes_.children);
    clear(grad_logits_, votes_.windows * votes_.slots * votes_.parents);
  }

  // Restores the queries of a window, and takes the output's gradient to its last sums.
  void start(Worker& shared, Worker& self, int64_t sample, int64_t w) const {
    std::fill_n(self.plain, context_.votes_size, T(0));
    for (int64_t t = 1; t <= last_; t++)
      context_.advance(t - 1, context_.sums_at(sums_, t - 1, sample), context_.masses_at(masses_, t - 1, sample),
                       self.plain, query(shared, t, w));
    context_.update.output_backward(context_.sums_at(sums_, last_, sample), context_.masses_at(masses_, last_, sample),
                                    grad_out_ + sample * context_.votes_size, self.plain, self.mass, self.centre);
    arrive(shared, self, w);
    std::fill_n(grad_query(shared, w), context_.votes_size, T(0));
  }

  // The gradients of sums and masses of a window, as the votes meet them. Where masses are not used theirs stay 0.
  void arrive(Worker& shared, const Worker& self, int64_t w) const {
    Vec<T>* const arriving = shared.arriving + w * arriving_size();
    pack_parents<T>(self.plain, votes_.parents, layout_.size, layout_.vectors, arriving);
    pack_parents<T>(self.mass, votes_.parents, 1, layout_.vectors, arriving + layout_.entries());
  }

  void visit(const Team& team, int64_t first, int64_t last, Worker& shared, Worker& self, int64_t t) {
    std::fill_n(self.sums, (last - first) * votes_.windows * layout_.entries(), Vec<T>{});
    int64_t unit, end;
    team.share(int64_t(context_.plan.units.size()), unit, end);
    for (; unit < end; unit++)
      for (int64_t e = 0; e < last - first; e++)
        visit_unit(context_.plan.units[unit], first + e, shared, self, e * votes_.windows, t);
  }

  // One iteration of one unit: gradients of its logits and votes.
  void visit_unit(const Unit& unit, int64_t example, Worker& shared, Worker& self, int64_t base, int64_t t) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    if (num_sights == 0) return;
    const int64_t child = example * votes_.children + unit.child;
    if (self.collected.pose) std::fill_n(self.collected.pose, unit.count * votes_.pose_size(), Vec<T>{});
    context_.for_competitions(num_sights, [&](int start, int count) {
      const Sight* const sights = bench.sights + start;
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        T ones[Block], totals[Block];
        std::fill_n(ones, Block, T(1));
        context_.template couple<Block>(bench, query(shared, t, base), t, example, sights, count, offset, num_sights,
                                        ones, self.logits);
        for (int k = 0; k < count; k++) respond<Block>(shared, self, base + sights[k].window, k);
        self.at_hand.template sum<Block>(bench, layout_.vectors, count, totals);
        if (!context_.max_min)
          self.at_hand.template average<Block>(bench, layout_.vectors, count, totals, context_.position);
        else if (context_.has_logits(t))
          max_min_backward<Block, T>(self.logits, count, layout_.vectors, context_.position, self.at_hand.response);
        for (int m = 0; gradients_.activations && !context_.options.detach && m < Block; m++)
          if (bench.children[offset + m].votes) gradients_.activations[child + offset + m] += totals[m];
        for (int k = 0; k < count; k++) {
          differentiate_logits<Block>(self, example, sights[k], offset, k, t);
          differentiate_votes<Block>(shared, self, base + sights[k].window, k, t);
          for (int m = 0; m < Block; m++)
            self.collected.spend(context_, sights[k].slot + offset + m,
                                 bench.delta + (k * Block + m) * layout_.entries(), bench.children[offset + m].pose,
                                 offset + m);
        }
      });
    });
    for (int m = 0; self.collected.pose && m < unit.count; m++)
      if (bench.children[m].votes) add_pose(self, m, gradients_.poses + (child + m) * votes_.pose_size());
  }

  // Slopes of a block in the window at place k: the gradients of its couplings.
  template <int Block>
  void respond(const Worker& shared, Worker& self, int64_t w, int k) const {
    const Vec<T>* const arriving = shared.arriving + w * arriving_size();
    Vec<T>* const slopes = self.at_hand.response + k * Block * layout_.vectors;
    agree<Block, false, T>(self.bench.delta + k * Block * layout_.entries(), arriving, layout_.vectors, layout_.size,
                           slopes);
    for (int m = 0; context_.euclidean && m < Block; m++)
      for (int v = 0; v < layout_.vectors; v++) slopes[m * layout_.vectors + v] += arriving[layout_.entries() + v];
  }

  // p and the slopes of a block (those of max-min couplings are h already, but for f) become c and h; h is the gradient of the initial logits where they take part.
  template <int Block>
  void differentiate_logits(Worker& self, int64_t example, const Sight& sight, int offset, int k, int64_t t) const {
    const bool carries = context_.has_logits(t) && !context_.options.detach;
    for (int m = 0; m < Block; m++) {
      const Child<T>& child = self.bench.children[offset + m];
      const T factor = context_.factor(child);
      Vec<T>* const coupling = self.bench.coupling + (k * Block + m) * layout_.vectors;
      Vec<T>* const slope = self.at_hand.response + (k * Block + m) * layout_.vectors;
      for (int v = 0; v < layout_.vectors; v++) {
        coupling[v] *= factor;
        if (!carries)
          slope[v] = Vec<T>{};
        else if (context_.max_min)
          slope[v] *= factor;
        else
          slope[v] = coupling[v] * (slope[v] - self.at_hand.mean[m * layout_.vectors + v]);
      }
      if (!grad_logits_ || !carries || !child.votes || !context_.has_initial_logits(t)) continue;
      T* const target = grad_logits_ + context_.coupling_at(example, sight, offset + m);
      for (int64_t j = 0; j < votes_.parents; j++) target[j] += slope[j / Simd<T>::width][j % Simd<T>::width];
    }
  }

  // The share of a block in the query's gradient; then its votes become their gradients.
  template <int Block>
  void differentiate_votes(const Worker& shared, Worker& self, int64_t w, int k, int64_t t) const {
    const Vec<T>* const gradient = shared.arriving + w * arriving_size();
    const Vec<T>* const couplings = self.bench.coupling + k * Block * layout_.vectors;
    const Vec<T>* const slopes = self.at_hand.response + k * Block * layout_.vectors;
    const Vec<T>* const meets = t > 0 && !context_.options.detach ? query(shared, t, w) : nullptr;
    Vec<T>* const votes = self.bench.delta + k * Block * layout_.entries();
    if (meets)
      add_weighted<Block, T>(votes, slopes, context_.euclidean ? meets : nullptr, layout_.vectors, layout_.size,
                             self.sums + w * layout_.entries());
    for (int m = 0; m < Block; m++) {
      for (int v = 0; v < layout_.vectors; v++) {
        const Vec<T> c = couplings[m * layout_.vectors + v], h = pull_ * slopes[m * layout_.vectors + v];
        for (int e = v * layout_.size; e < (v + 1) * layout_.size; e++) {
          Vec<T>& vote = votes[m * layout_.entries() + e];
          Vec<T> total = c * gradient[e];
          if (meets) total += h * (context_.euclidean ? meets[e] - vote : meets[e]);
          vote = total;
        }
      }
    }
  }

  void add_pose(const Worker& self, int m, T* target) const {
    const int64_t size = votes_.pose_size();
    combine_lanes<T>(self.collected.pose + m * size, int(size), Add(), self.pose);
    for (int64_t i = 0; i < size; i++) target[i] += self.pose[i];
  }

  void gather(const Team& team, int home, int64_t w) {
    const int64_t count = layout_.entries();
    for (int other = 1; other < team.size; other++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) workers_[home].sums[k] += workers_[other].sums[k];
  }

  // From the gradient of the query of iteration t to that of the sums of iteration t - 1.
  void step_back(Worker& shared, Worker& self, int64_t sample, int64_t w, int64_t t) const {
    T* const gradient = grad_query(shared, w);
    unpack_parents<T>(shared.sums + w * layout_.entries(), votes_.parents, layout_.size, layout_.vectors, self.plain);
    for (int64_t i = 0; i < context_.votes_size; i++)
      gradient[i] = (context_.update.accumulates() ? gradient[i] : T(0)) + pull_ * self.plain[i];
    context_.update.next_query_backward(t - 1, context_.sums_at(sums_, t - 1, sample),
                                        context_.masses_at(masses_, t - 1, sample), gradient, self.plain, self.mass);
    arrive(shared, self, w);
  }

  template <class Any>
  Any* take(int64_t count) {
    return context_.frame.template take<Any>(count);
  }

  SoftmaxContext<T, Shape> context_;
  const Votes<T>& votes_;
  const Layout<T>& layout_;
  const T *sums_, *masses_, *grad_out_;
  const SoftmaxGradients<T> gradients_;
  T* const grad_logits_;
  const int64_t last_, earliest_;  // iterations that carry gradients
  const T pull_;                   // of a logit: by its agreement, without the sign of the euclidean one
  std::vector<Worker> workers_;
  int64_t tile_;
};

}  // namespace
}  // namespace by_child

template <class T>
void softmax_child_backward(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits,
                            const T* sums, const T* masses, const T* grad_out, const SoftmaxGradients<T>& gradients,
                            T* grad_logits, int threads) {
  by_child::check(votes, options, masses, threads);
  by_child::with_shape(votes, [&](auto shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    by_child::SoftmaxChildBackward<T, Shape>(votes, options, initial_logits, sums, masses, grad_out, gradients,
                                             grad_logits, threads)
        .run();
  });
}

#define TORCHCAPS_INSTANTIATE(T)                                                                              \
  template void softmax_child_backward<T>(const Votes<T>&, const SoftmaxOptions&, const T*, const T*, const T*, \
                                          const T*, const SoftmaxGradients<T>&, T*, int);
TORCHCAPS_INSTANTIATE(float)
TORCHCAPS_INSTANTIATE(double)

}  // namespace torchcaps
