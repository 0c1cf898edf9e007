// What forward, couplings and backward of the softmax routings share that work child by child.
#pragma once
#include "child_context.h"
#include "max_min.h"
#include "softmax_child.h"
#include "softmax_update.h"

namespace torchcaps {
namespace by_child {

// agreement[Block][vectors] with the query of a window: <vote, query>, or |vote - query|^2.
template <int Block, bool euclidean, class T>
inline void agree(const Vec<T>* votes, const Vec<T>* query, int vectors, int size, Vec<T>* agreement) {
  const int stride = vectors * size;
  for (int v = 0; v < vectors; v++) {
    Vec<T> total[Block] = {};
    for (int h = v * size; h < (v + 1) * size; h++) {
      for (int m = 0; m < Block; m++) {
        const Vec<T> vote = votes[m * stride + h];
        total[m] += euclidean ? (vote - query[h]) * (vote - query[h]) : vote * query[h];
      }
    }
    for (int m = 0; m < Block; m++) agreement[m * vectors + v] = total[m];
  }
}

// sums[vectors][D] += weight vote, or weight (vote - centre), of each child in the block.
template <int Block, class T>
inline void add_weighted(const Vec<T>* votes, const Vec<T>* weight, const Vec<T>* centre, int vectors, int size,
                         Vec<T>* sums) {
  const int stride = vectors * size;
  for (int v = 0; v < vectors; v++) {
    Vec<T> w[Block];
    for (int m = 0; m < Block; m++) w[m] = weight[m * vectors + v];
    for (int h = v * size; h < (v + 1) * size; h++) {
      Vec<T> total = sums[h];
      for (int m = 0; m < Block; m++) {
        const Vec<T> vote = votes[m * stride + h];
        total += w[m] * (centre ? vote - centre[h] : vote);
      }
      sums[h] = total;
    }
  }
}

// What forward, backward and couplings share: queries and the couplings they give.
template <class T, class Shape>
struct SoftmaxContext : ChildContext<T, Shape> {
  using Base = ChildContext<T, Shape>;
  using Base::global, Base::initial_logits, Base::layout, Base::votes;
  const SoftmaxOptions& options;
  const SoftmaxUpdate<T> update;  // of one window at a time
  const bool euclidean, max_min;
  const T logit_scale;
  const int64_t samples, votes_size;  // B * S, and J * D
  int64_t num_taking_part = 0;        // of the parents
  Vec<T>* const shut;                 // [vectors]: minus infinity for parents that take no part, 0 for the others
  Vec<T>* const open;                 // [vectors]: 0 and 1
  Vec<T>* const origin;               // [vectors][D] of zeros: votes are measured from it

  SoftmaxContext(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits, int threads)
      : Base(votes, options.competition, initial_logits, threads),
        options(options),
        update(options, votes.parents, votes.vote_size(), 1),
        euclidean(options.algorithm == kmeans_euclidean),
        max_min(options.algorithm == max_min_routing),
        logit_scale(euclidean ? T(-options.inverse_temperature) : T(1)),
        samples(votes.examples * votes.windows),
        votes_size(votes.parents * votes.vote_size()),
        shut(this->frame.template take<Vec<T>>(layout.vectors)),
        open(this->frame.template take<Vec<T>>(layout.vectors)),
        origin(this->frame.template take<Vec<T>>(layout.entries())) {
    std::fill_n(origin, layout.entries(), Vec<T>{});
    for (int64_t j = 0; j < layout.vectors * Simd<T>::width; j++) {
      const bool takes_part = j < votes.parents && (!options.partial || options.partial[j]);
      num_taking_part += takes_part;
      shut[j / Simd<T>::width][j % Simd<T>::width] = takes_part ? T(0) : -std::numeric_limits<T>::infinity();
      open[j / Simd<T>::width][j % Simd<T>::width] = takes_part ? T(1) : T(0);
    }
    require(num_taking_part >= 1);
  }

  // The sums and masses of one iteration and sample; where nothing needs masses none are saved.
  template <class Any>
  Any* sums_at(Any* sums, int64_t t, int64_t sample) const {
    return sums + (t * samples + sample) * votes_size;
  }
  template <class Any>
  Any* masses_at(Any* masses, int64_t t, int64_t sample) const {
    return euclidean ? masses + (t * samples + sample) * votes.parents : nullptr;
  }

  // What the couplings of a child are multiplied with.
  T factor(const Child<T>& child) const { return !child.votes ? T(0) : options.amend ? child.activation : T(1); }

  // Whether the couplings of iteration t are a softmax of logits, and whether the initial ones are among those.
  bool has_logits(int64_t t) const { return t > 0 || initial_logits; }
  bool has_initial_logits(int64_t t) const { return initial_logits && (t == 0 || update.accumulates()); }

  // bench.delta gets the votes of the children [offset, offset + Block) in `count` windows that compete,
  // bench.coupling their couplings in iteration t times `scale`. `queries` are those of the example, by window. Where
  // there are logits, `kept` gets a copy of them if it is given.
  template <int Block>
  void couple(Bench<T>& bench, const Vec<T>* queries, int64_t t, int64_t example, const Sight* sights, int count,
              int offset, int num_sights, const T* scale, Vec<T>* kept = nullptr) const {
    const int vectors = layout.vectors;
    for (int k = 0; k < count; k++) {
      Vec<T>* const delta = bench.delta + k * Block * layout.entries();
      Vec<T>* const logits = bench.coupling + k * Block * vectors;
      this->template centre_votes<Block>(bench, sights[k], offset, origin, delta);
      if (!has_logits(t)) {
        share_equally<Block>(num_sights, scale, logits);
        continue;
      }
      const Vec<T>* const query = queries + sights[k].window * layout.entries();
      if (t == 0)
        std::fill_n(logits, Block * vectors, Vec<T>{});
      else if (euclidean)
        agree<Block, true, T>(delta, query, vectors, layout.size, logits);
      else
        agree<Block, false, T>(delta, query, vectors, layout.size, logits);
      for (int m = 0; m < Block; m++) {
        for (int v = 0; v < vectors; v++) {
          Vec<T> logit = logits[m * vectors + v] * logit_scale;
          if (has_initial_logits(t)) logit += this->initial_logits_at(bench, example, sights[k], offset + m, v);
          logits[m * vectors + v] = logit + shut[v];
        }
      }
    }
    if (!has_logits(t)) return;
    if (kept) std::copy_n(bench.coupling, count * Block * vectors, kept);
    if (max_min)
      by_child::max_min<Block, T>(bench.coupling, count, vectors, scale, this->position);
    else
      this->template compete<Block>(bench, count, scale, nullptr, options.leaky);
  }

  // Equal shares of the parents that take part; where types do not compete it is their share all the same. Max-min
  // couplings of equal logits are 1.
  template <int Block>
  void share_equally(int num_sights, const T* scale, Vec<T>* couplings) const {
    const int64_t sharing = max_min ? 1 : num_taking_part * (global ? num_sights : 1) + (options.leaky ? 1 : 0);
    const T share = T(1) / T(sharing);
    for (int m = 0; m < Block; m++)
      for (int v = 0; v < layout.vectors; v++) couplings[m * layout.vectors + v] = open[v] * (share * scale[m]);
  }

  // The next query of a window from the sums of iteration t, as plain numbers and as registers.
  void advance(int64_t t, const T* sums, const T* masses, T* plain, Vec<T>* query) const {
    update.next_query(t, sums, masses, plain);
    pack_parents<T>(plain, votes.parents, layout.size, layout.vectors, query);
  }
};

// Refuses what would make a kernel read outside its memory, or count further than an int goes.
template <class T>
void check(const Votes<T>& votes, const SoftmaxOptions& options, const T* masses, int threads) {
  torchcaps::check(votes);
  require(threads >= 1 && options.iterations >= 1 && (!options.amend || votes.activations));
  require(options.competition >= 0 && options.competition <= 2);
  require(options.algorithm != max_min_routing || !options.leaky);
  require(options.algorithm != kmeans_euclidean || masses);
  require(options.algorithm != entropy_routing || options.alphas);
  require(options.algorithm != attention_routing || options.epsilon > 0);
  require(votes.pose_size() <= largest_number && votes.inner * votes.outer <= largest_number);
  require((votes.parents + Simd<T>::width) * votes.vote_size() <= largest_number);
}

}  // namespace by_child
}  // namespace torchcaps
