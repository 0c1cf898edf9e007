// Forward pass of the softmax routings child by child, and the couplings of any iteration afterwards.
#include <vector>

#include "softmax_child_context.h"

namespace torchcaps {
namespace by_child {
namespace {

template <class T, class Shape>
class SoftmaxChildForward {
 public:
  SoftmaxChildForward(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits, int threads)
      : context_(votes, options, initial_logits, threads),
        votes_(votes),
        layout_(context_.layout),
        workers_(context_.threads) {}

  // out: (B * S, J, D).
  void run(T* out, T* sums, T* masses) {
    out_ = out, sums_ = sums, masses_ = masses;
    const int64_t per_window = (2 * layout_.entries() + layout_.vectors) * int64_t(sizeof(Vec<T>)) +
                               context_.votes_size * int64_t(sizeof(T));
    const int64_t tile = context_.tile_size(per_window * votes_.windows);
    take(tile * votes_.windows);
#pragma omp parallel num_threads(context_.threads)
    {
      context_.pack();
      context_.for_tiles(tile, [this](const Team& team, int64_t first, int64_t last, int home) {
        route(team, first, last, home);
      });
    }
  }

  // coupling: (B * S, N, J) of one iteration, from what `run` saved.
  void couplings(int64_t iteration, const T* sums, const T* masses, T* coupling) {
    take(votes_.windows);
#pragma omp parallel num_threads(context_.threads)
    {
      context_.pack();
      Worker& self = workers_[omp_get_thread_num()];
#pragma omp for schedule(static)
      for (int64_t example = 0; example < votes_.examples; example++) {
        for (int64_t w = 0; w < votes_.windows; w++) restore(self, example, w, iteration, sums, masses);
        const int64_t size = votes_.windows * votes_.slots * votes_.parents;
        std::fill_n(coupling + example * size, size, T(0));
        for (const Unit& unit : context_.plan.units) write_unit(self, unit, example, iteration, coupling);
      }
    }
  }

 private:
  // The first two are shared by a team that works at home; windows of a tile are numbered through.
  struct Worker {
    T* plain;         // [windows][J][D]: the queries as the update knows them,
    Vec<T>* queries;  // [windows][vectors][D]: and as the votes meet them
    Vec<T>* sums;     // [windows][vectors][D], then [windows][vectors] of masses, over the children this worker visits
    Bench<T> bench;
  };

  void take(int64_t windows) {
    for (Worker& worker : workers_) {
      worker.plain = context_.frame.template take<T>(windows * context_.votes_size);
      worker.queries = context_.frame.template take<Vec<T>>(windows * layout_.entries());
      worker.sums = context_.frame.template take<Vec<T>>(windows * sums_size());
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
    }
  }

  int64_t sums_size() const { return layout_.entries() + layout_.vectors; }
  T* plain(const Worker& worker, int64_t w) const { return worker.plain + w * context_.votes_size; }
  Vec<T>* query(const Worker& worker, int64_t w) const { return worker.queries + w * layout_.entries(); }

  // All iterations for the examples [first, last).
  void route(const Team& team, int64_t first, int64_t last, int home) {
    Worker& shared = workers_[home];
    Worker& self = team.size > 1 ? workers_[team.rank] : shared;
    int64_t mine, end;
    team.share((last - first) * votes_.windows, mine, end);
    std::fill(plain(shared, mine), plain(shared, end), T(0));
    for (int64_t t = 0; t < context_.options.iterations; t++) {
      visit(team, first, last, shared, self, t);
      team.wait();
      for (int64_t w = mine; w < end; w++) {
        gather(team, home, w);
        finish_window(shared, first * votes_.windows + w, w, t);
      }
      team.wait();
    }
  }

  // Sums over this worker's share of the children.
  void visit(const Team& team, int64_t first, int64_t last, Worker& shared, Worker& self, int64_t t) {
    std::fill_n(self.sums, (last - first) * votes_.windows * sums_size(), Vec<T>{});
    int64_t unit, end;
    team.share(int64_t(context_.plan.units.size()), unit, end);
    for (; unit < end; unit++)
      for (int64_t e = 0; e < last - first; e++)
        visit_unit(context_.plan.units[unit], first + e, shared, self, e * votes_.windows, t);
  }

  void visit_unit(const Unit& unit, int64_t example, Worker& shared, Worker& self, int64_t base, int64_t t) {
    const auto add = [&](auto block_size, const Sight& sight, int, int k) {
      constexpr int Block = decltype(block_size)::value;
      const Vec<T>* const weight = self.bench.coupling + k * Block * layout_.vectors;
      Vec<T>* const sums = self.sums + (base + sight.window) * sums_size();
      add_weighted<Block, T>(self.bench.delta + k * Block * layout_.entries(), weight, nullptr, layout_.vectors,
                             layout_.size, sums);
      for (int i = 0; i < Block * layout_.vectors; i++) sums[layout_.entries() + i % layout_.vectors] += weight[i];
    };
    for_couplings(self.bench, unit, example, query(shared, base), t, add);
  }

  // Calls body(block, sight, offset, k) when votes and couplings of a block of children are on the bench, at place k.
  template <class Body>
  void for_couplings(Bench<T>& bench, const Unit& unit, int64_t example, const Vec<T>* queries, int64_t t,
                     Body&& body) {
    const int num_sights = context_.look(unit, example, bench);
    context_.for_competitions(num_sights, [&](int start, int count) {
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        T factors[Block];
        for (int m = 0; m < Block; m++) factors[m] = context_.factor(bench.children[offset + m]);
        context_.template couple<Block>(bench, queries, t, example, bench.sights + start, count, offset, num_sights,
                                        factors);
        for (int k = 0; k < count; k++) body(block_size, bench.sights[start + k], offset, k);
      });
    });
  }

  // Adds up what the workers of a team have summed for a window.
  void gather(const Team& team, int home, int64_t w) {
    const int64_t count = sums_size();
    for (int other = 1; other < team.size; other++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) workers_[home].sums[k] += workers_[other].sums[k];
  }

  // Saves the sums of a window, and makes the next query or the output of them.
  void finish_window(Worker& shared, int64_t sample, int64_t w, int64_t t) {
    const Vec<T>* const found = shared.sums + w * sums_size();
    T* const sums = context_.sums_at(sums_, t, sample);
    T* const masses = context_.masses_at(masses_, t, sample);
    unpack_parents<T>(found, votes_.parents, layout_.size, layout_.vectors, sums);
    if (masses) unpack_parents<T>(found + layout_.entries(), votes_.parents, 1, layout_.vectors, masses);
    if (t + 1 < context_.options.iterations)
      context_.advance(t, sums, masses, plain(shared, w), query(shared, w));
    else
      context_.update.output(sums, masses, out_ + sample * context_.votes_size);
  }

  // The query of a window in one iteration, from the sums of those before.
  void restore(Worker& self, int64_t example, int64_t w, int64_t iteration, const T* sums, const T* masses) const {
    const int64_t sample = example * votes_.windows + w;
    std::fill_n(plain(self, w), context_.votes_size, T(0));
    for (int64_t t = 0; t < iteration; t++)
      context_.advance(t, context_.sums_at(sums, t, sample), context_.masses_at(masses, t, sample), plain(self, w),
                       query(self, w));
  }

  void write_unit(Worker& self, const Unit& unit, int64_t example, int64_t iteration, T* coupling) {
    Bench<T>& bench = self.bench;
    for_couplings(bench, unit, example, self.queries, iteration,
                  [&](auto block_size, const Sight& sight, int offset, int k) {
                    constexpr int Block = decltype(block_size)::value;
                    for (int m = 0; m < Block; m++)
                      if (bench.children[offset + m].votes)
                        unpack_parents<T>(bench.coupling + (k * Block + m) * layout_.vectors, votes_.parents, 1,
                                          layout_.vectors, coupling + context_.coupling_at(example, sight, offset + m));
                  });
  }

  SoftmaxContext<T, Shape> context_;
  const Votes<T>& votes_;
  const Layout<T>& layout_;
  std::vector<Worker> workers_;
  T *out_ = nullptr, *sums_ = nullptr, *masses_ = nullptr;
};

}  // namespace
}  // namespace by_child

template <class T>
void softmax_child_forward(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits, T* out,
                           T* sums, T* masses, int threads) {
  by_child::check(votes, options, masses, threads);
  by_child::with_shape(votes, [&](auto shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    by_child::SoftmaxChildForward<T, Shape>(votes, options, initial_logits, threads).run(out, sums, masses);
  });
}

template <class T>
void softmax_child_couplings(const Votes<T>& votes, const SoftmaxOptions& options, const T* initial_logits,
                             const T* sums, const T* masses, int64_t iteration, T* couplings, int threads) {
  by_child::check(votes, options, masses, threads);
  require(iteration >= 0 && iteration < options.iterations);
  by_child::with_shape(votes, [&](auto shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    by_child::SoftmaxChildForward<T, Shape>(votes, options, initial_logits, threads)
        .couplings(iteration, sums, masses, couplings);
  });
}

#define TORCHCAPS_INSTANTIATE(T)                                                                                     \
  template void softmax_child_forward<T>(const Votes<T>&, const SoftmaxOptions&, const T*, T*, T*, T*, int);          \
  template void softmax_child_couplings<T>(const Votes<T>&, const SoftmaxOptions&, const T*, const T*, const T*,      \
                                           int64_t, T*, int);
TORCHCAPS_INSTANTIATE(float)
TORCHCAPS_INSTANTIATE(double)

}  // namespace torchcaps
