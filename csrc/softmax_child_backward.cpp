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
    const int64_t bytes = int64_t(sizeof(Vec<T>)), sums_bytes = layout_.entries() * votes.windows * bytes;
    const int64_t registers = (options.iterations + 1) * layout_.entries() + layout_.vectors;
    const int64_t per_window = registers * bytes + context_.votes_size * int64_t(sizeof(T));
    const int64_t kept = votes.transforms * ((gradients.weight ? context_.weight_registers : 0) +
                                             (gradients.bias ? layout_.entries() : 0)) * bytes;
    cut_ = context_.cut(per_window * votes.windows + sums_bytes, sums_bytes, kept);
    tiles_.resize(cut_.tiles(context_.threads));
    parts_.resize(cut_.parts());
    const int64_t windows = cut_.tile * votes.windows;
    for (Tile& tile : tiles_) {
      tile.queries = take<Vec<T>>(options.iterations * windows * layout_.entries());
      tile.arriving = take<Vec<T>>(windows * arriving_size());
      tile.grad_query = take<T>(windows * context_.votes_size);
      tile.sums = take<Vec<T>>(cut_.pieces * windows * layout_.entries());
    }
    for (Worker& worker : workers_) {
      worker.plain = take<T>(context_.votes_size);
      worker.mass = context_.frame.template zeros<T>(votes.parents);
      worker.centre = take<T>(layout_.size);
      worker.pose = take<T>(votes.pose_size());
      worker.grad_pose = gradients.poses ? take<Vec<T>>(Plan::largest_unit * votes.pose_size()) : nullptr;
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
      worker.at_hand.take(context_.frame, layout_, context_.most_competing);
      worker.logits = context_.max_min ? take<Vec<T>>(context_.most_competing * block * layout_.vectors) : nullptr;
    }
    for (Collected<T, Shape>& part : parts_) part.take(context_, gradients.weight, gradients.bias);
  }

  void run() {
    Crew::work(context_.threads, [this](Crew& crew) {
      context_.pack(crew);
      const int64_t count = int64_t(parts_.size());
      crew.run(count, [this](int64_t part, int) { parts_[part].clear(context_); });
      context_.for_tiles(crew, cut_,
                         [this](const Hands& hands, int64_t first, int64_t last, int64_t part, int64_t home) {
                           descend(hands, tiles_[home], &parts_[part], first, last);
                         });
      if (gradients_.weight)
        write_transforms<T>(crew, votes_, layout_.vectors, count, votes_.inner * votes_.outer,
                            [&](int64_t n) { return parts_[n].weight; }, gradients_.weight);
      if (gradients_.bias)
        write_transforms<T>(crew, votes_, layout_.vectors, count, layout_.size,
                            [&](int64_t n) { return parts_[n].bias; }, gradients_.bias);
    });
  }

 private:
  // Examples that are worked on together; their windows are numbered through.
  struct Tile {
    Vec<T>* queries;   // [iterations][windows][vectors][D]
    Vec<T>* arriving;  // [windows]: the gradients of sums, [vectors][D], and of masses, [vectors], of iteration t
    T* grad_query;     // [windows][J][D]
    Vec<T>* sums;      // [pieces][windows][vectors][D]: what the children of a piece give to the queries
  };
  struct Worker {
    T *plain, *mass;    // (J, D) and (J), of one window
    T *centre, *pose;   // (D) and (R * K)
    Vec<T>* grad_pose;  // [unit][R * K]: gradients of the poses at hand, lanes not yet summed; or null
    Bench<T> bench;
    Responses<T> at_hand;
    Vec<T>* logits;     // [sights][block][vectors] of the children at hand, for max-min couplings
    const Collected<T, Shape>* part;  // where it gathers
  };

  int64_t arriving_size() const { return layout_.entries() + layout_.vectors; }
  Vec<T>* query(const Tile& tile, int64_t t, int64_t w) const {
    return tile.queries + (t * cut_.tile * votes_.windows + w) * layout_.entries();
  }
  T* grad_query(const Tile& tile, int64_t w) const { return tile.grad_query + w * context_.votes_size; }

  // All iterations, last to first, for the examples [first, last); `parts` are those of the pieces.
  void descend(const Hands& hands, const Tile& tile, const Collected<T, Shape>* parts, int64_t first, int64_t last) {
    const int64_t windows = (last - first) * votes_.windows;
    clear_children(hands, first, last);
    hands.share(windows, [&](int64_t, int who, Range mine) {
      for (int64_t w = mine.first; w < mine.last; w++) start(tile, workers_[who], first * votes_.windows + w, w);
    });
    for (int64_t t = last_;; t--) {
      visit(hands, tile, parts, first, last, t);
      if (t == earliest_) break;
      hands.share(windows, [&](int64_t, int who, Range mine) {
        for (int64_t w = mine.first; w < mine.last; w++) {
          gather(hands, tile, windows, w);
          step_back(tile, workers_[who], first * votes_.windows + w, w, t);
        }
      });
    }
  }

  // Children that no window sees, and slots without a vote, get gradient 0.
  void clear_children(const Hands& hands, int64_t first, int64_t last) const {
    const auto clear = [&](T* target, int64_t per_example) {
      if (!target) return;
      hands.share((last - first) * per_example, [&](int64_t, int, Range mine) {
        std::fill(target + first * per_example + mine.first, target + first * per_example + mine.last, T(0));
      });
    };
    clear(gradients_.poses, votes_.children * votes_.pose_size());
    clear(gradients_.activations, votes_.children);
    clear(grad_logits_, votes_.windows * votes_.slots * votes_.parents);
  }

  // Restores the queries of a window, and takes the output's gradient to its last sums.
  void start(const Tile& tile, Worker& self, int64_t sample, int64_t w) const {
    std::fill_n(self.plain, context_.votes_size, T(0));
    for (int64_t t = 1; t <= last_; t++)
      context_.advance(t - 1, context_.sums_at(sums_, t - 1, sample), context_.masses_at(masses_, t - 1, sample),
                       self.plain, query(tile, t, w));
    context_.update.output_backward(context_.sums_at(sums_, last_, sample), context_.masses_at(masses_, last_, sample),
                                    grad_out_ + sample * context_.votes_size, self.plain, self.mass, self.centre);
    arrive(tile, self, w);
    std::fill_n(grad_query(tile, w), context_.votes_size, T(0));
  }

  // The gradients of sums and masses of a window, as the votes meet them. Where masses are not used theirs stay 0.
  void arrive(const Tile& tile, const Worker& self, int64_t w) const {
    Vec<T>* const arriving = tile.arriving + w * arriving_size();
    pack_parents<T>(self.plain, votes_.parents, layout_.size, layout_.vectors, arriving);
    pack_parents<T>(self.mass, votes_.parents, 1, layout_.vectors, arriving + layout_.entries());
  }

  void visit(const Hands& hands, const Tile& tile, const Collected<T, Shape>* parts, int64_t first, int64_t last,
             int64_t t) {
    const int64_t registers = (last - first) * votes_.windows * layout_.entries();
    hands.share(int64_t(context_.plan.units.size()), [&](int64_t piece, int who, Range units) {
      Worker& self = workers_[who];
      self.part = &parts[piece];
      Vec<T>* const sums = tile.sums + piece * registers;
      std::fill_n(sums, registers, Vec<T>{});
      for (int64_t unit = units.first; unit < units.last; unit++)
        for (int64_t e = 0; e < last - first; e++)
          visit_unit(context_.plan.units[unit], first + e, tile, self, sums, e * votes_.windows, t);
    });
  }

  // One iteration of one unit: gradients of its logits and votes.
  void visit_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, Vec<T>* all_sums, int64_t base,
                  int64_t t) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    if (num_sights == 0) return;
    const int64_t child = example * votes_.children + unit.child;
    if (self.grad_pose) std::fill_n(self.grad_pose, unit.count * votes_.pose_size(), Vec<T>{});
    context_.for_competitions(num_sights, [&](int start, int count) {
      const Sight* const sights = bench.sights + start;
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        T ones[Block], totals[Block];
        std::fill_n(ones, Block, T(1));
        context_.template couple<Block>(bench, query(tile, t, base), t, example, sights, count, offset, num_sights,
                                        ones, self.logits);
        for (int k = 0; k < count; k++) respond<Block>(tile, self, base + sights[k].window, k);
        self.at_hand.template sum<Block>(bench, layout_.vectors, count, totals);
        if (!context_.max_min)
          self.at_hand.template average<Block>(bench, layout_.vectors, count, totals, context_.position);
        else if (context_.has_logits(t))
          max_min_backward<Block, T>(self.logits, count, layout_.vectors, context_.position, self.at_hand.response);
        for (int m = 0; gradients_.activations && !context_.options.detach && m < Block; m++)
          if (bench.children[offset + m].votes) gradients_.activations[child + offset + m] += totals[m];
        for (int k = 0; k < count; k++) {
          differentiate_logits<Block>(self, example, sights[k], offset, k, t);
          differentiate_votes<Block>(tile, self, all_sums, base + sights[k].window, k, t);
          for (int m = 0; m < Block; m++)
            self.part->spend(context_, sights[k].slot + offset + m,
                             bench.delta + (k * Block + m) * layout_.entries(), bench.children[offset + m].pose,
                             self.grad_pose ? self.grad_pose + (offset + m) * votes_.pose_size() : nullptr);
        }
      });
    });
    for (int m = 0; self.grad_pose && m < unit.count; m++)
      if (bench.children[m].votes) add_pose(self, m, gradients_.poses + (child + m) * votes_.pose_size());
  }

  // Slopes of a block in the window at place k: the gradients of its couplings.
  template <int Block>
  void respond(const Tile& tile, Worker& self, int64_t w, int k) const {
    const Vec<T>* const arriving = tile.arriving + w * arriving_size();
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
  void differentiate_votes(const Tile& tile, Worker& self, Vec<T>* all_sums, int64_t w, int k, int64_t t) const {
    const Vec<T>* const gradient = tile.arriving + w * arriving_size();
    const Vec<T>* const couplings = self.bench.coupling + k * Block * layout_.vectors;
    const Vec<T>* const slopes = self.at_hand.response + k * Block * layout_.vectors;
    const Vec<T>* const meets = t > 0 && !context_.options.detach ? query(tile, t, w) : nullptr;
    Vec<T>* const votes = self.bench.delta + k * Block * layout_.entries();
    if (meets)
      add_weighted<Block, T>(votes, slopes, context_.euclidean ? meets : nullptr, layout_.vectors, layout_.size,
                             all_sums + w * layout_.entries());
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
    combine_lanes<T>(self.grad_pose + m * size, int(size), Add(), self.pose);
    for (int64_t i = 0; i < size; i++) target[i] += self.pose[i];
  }

  // Adds up what the pieces have summed for a window, into the place of the first.
  void gather(const Hands& hands, const Tile& tile, int64_t windows, int64_t w) {
    const int64_t count = layout_.entries();
    for (int64_t piece = 1; piece < hands.pieces; piece++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) tile.sums[k] += tile.sums[piece * windows * count + k];
  }

  // From the gradient of the query of iteration t to that of the sums of iteration t - 1.
  void step_back(const Tile& tile, Worker& self, int64_t sample, int64_t w, int64_t t) const {
    T* const gradient = grad_query(tile, w);
    unpack_parents<T>(tile.sums + w * layout_.entries(), votes_.parents, layout_.size, layout_.vectors, self.plain);
    for (int64_t i = 0; i < context_.votes_size; i++)
      gradient[i] = (context_.update.accumulates() ? gradient[i] : T(0)) + pull_ * self.plain[i];
    if (T* const told = gradients_.queries_at(t, context_.samples * context_.votes_size))
      std::copy_n(gradient, context_.votes_size, told + sample * context_.votes_size);
    context_.update.next_query_backward(t - 1, context_.sums_at(sums_, t - 1, sample),
                                        context_.masses_at(masses_, t - 1, sample), gradient, self.plain, self.mass);
    arrive(tile, self, w);
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
  std::vector<Tile> tiles_;
  std::vector<Collected<T, Shape>> parts_;
  typename SoftmaxContext<T, Shape>::Cut cut_;
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
