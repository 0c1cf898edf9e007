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
    const int64_t sums_bytes = sums_size() * votes_.windows * int64_t(sizeof(Vec<T>));
    const int64_t per_window = layout_.entries() * int64_t(sizeof(Vec<T>)) + context_.votes_size * int64_t(sizeof(T));
    const auto cut = context_.cut(per_window * votes_.windows + sums_bytes, sums_bytes, 0);
    take(cut.tiles(context_.threads), cut.tile * votes_.windows, cut.pieces);
    Crew::work(context_.threads, [&](Crew& crew) {
      context_.pack(crew);
      context_.for_tiles(crew, cut, [this](const Hands& hands, int64_t first, int64_t last, int64_t, int64_t home) {
        route(hands, tiles_[home], first, last);
      });
    });
  }

  // coupling: (B * S, N, J) of one iteration, from what `run` saved.
  void couplings(int64_t iteration, const T* sums, const T* masses, T* coupling) {
    take(context_.threads, votes_.windows, 0);
    Crew::work(context_.threads, [&](Crew& crew) {
      context_.pack(crew);
      crew.run(votes_.examples, [&](int64_t example, int who) {
        const Tile& tile = tiles_[who];
        for (int64_t w = 0; w < votes_.windows; w++) restore(tile, example, w, iteration, sums, masses);
        const int64_t size = votes_.windows * votes_.slots * votes_.parents;
        std::fill_n(coupling + example * size, size, T(0));
        for (const Unit& unit : context_.plan.units)
          write_unit(tile, workers_[who], unit, example, iteration, coupling);
      });
    });
  }

 private:
  // Examples that are worked on together; their windows are numbered through.
  struct Tile {
    T* plain;         // [windows][J][D]: the queries as the update knows them,
    Vec<T>* queries;  // [windows][vectors][D]: and as the votes meet them
    Vec<T>* sums;     // [pieces][windows]: [vectors][D], then [vectors] of masses, over the children of a piece
  };
  struct Worker {
    Bench<T> bench;
  };

  void take(int64_t num_tiles, int64_t windows, int64_t pieces) {
    tiles_.resize(num_tiles);
    for (Tile& tile : tiles_) {
      tile.plain = context_.frame.template take<T>(windows * context_.votes_size);
      tile.queries = context_.frame.template take<Vec<T>>(windows * layout_.entries());
      tile.sums = context_.frame.template take<Vec<T>>(pieces * windows * sums_size());
    }
    for (Worker& worker : workers_)
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
  }

  int64_t sums_size() const { return layout_.entries() + layout_.vectors; }
  T* plain(const Tile& tile, int64_t w) const { return tile.plain + w * context_.votes_size; }
  Vec<T>* query(const Tile& tile, int64_t w) const { return tile.queries + w * layout_.entries(); }

  // All iterations for the examples [first, last).
  void route(const Hands& hands, const Tile& tile, int64_t first, int64_t last) {
    const int64_t windows = (last - first) * votes_.windows;
    std::fill(plain(tile, 0), plain(tile, windows), T(0));
    for (int64_t t = 0; t < context_.options.iterations; t++) {
      visit(hands, tile, first, last, t);
      hands.share(windows, [&](int64_t, int, Range mine) {
        for (int64_t w = mine.first; w < mine.last; w++) {
          gather(hands, tile, windows, w);
          finish_window(tile, first * votes_.windows + w, w, t);
        }
      });
    }
  }

  // Sums over the children.
  void visit(const Hands& hands, const Tile& tile, int64_t first, int64_t last, int64_t t) {
    const int64_t registers = (last - first) * votes_.windows * sums_size();
    hands.share(int64_t(context_.plan.units.size()), [&](int64_t piece, int who, Range units) {
      Vec<T>* const sums = tile.sums + piece * registers;
      std::fill_n(sums, registers, Vec<T>{});
      for (int64_t unit = units.first; unit < units.last; unit++)
        for (int64_t e = 0; e < last - first; e++)
          visit_unit(context_.plan.units[unit], first + e, tile, workers_[who], sums, e * votes_.windows, t);
    });
  }

  void visit_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, Vec<T>* all_sums, int64_t base,
                  int64_t t) {
    const auto add = [&](auto block_size, const Sight& sight, int, int k) {
      constexpr int Block = decltype(block_size)::value;
      const Vec<T>* const weight = self.bench.coupling + k * Block * layout_.vectors;
      Vec<T>* const sums = all_sums + (base + sight.window) * sums_size();
      add_weighted<Block, T>(self.bench.delta + k * Block * layout_.entries(), weight, nullptr, layout_.vectors,
                             layout_.size, sums);
      for (int i = 0; i < Block * layout_.vectors; i++) sums[layout_.entries() + i % layout_.vectors] += weight[i];
    };
    for_couplings(self.bench, unit, example, query(tile, base), t, add);
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

  // Adds up what the pieces have summed for a window, into the place of the first.
  void gather(const Hands& hands, const Tile& tile, int64_t windows, int64_t w) {
    const int64_t count = sums_size();
    for (int64_t piece = 1; piece < hands.pieces; piece++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) tile.sums[k] += tile.sums[piece * windows * count + k];
  }

  // Saves the sums of a window, and makes the next query or the output of them.
  void finish_window(const Tile& tile, int64_t sample, int64_t w, int64_t t) {
    const Vec<T>* const found = tile.sums + w * sums_size();
    T* const sums = context_.sums_at(sums_, t, sample);
    T* const masses = context_.masses_at(masses_, t, sample);
    unpack_parents<T>(found, votes_.parents, layout_.size, layout_.vectors, sums);
    if (masses) unpack_parents<T>(found + layout_.entries(), votes_.parents, 1, layout_.vectors, masses);
    if (t + 1 < context_.options.iterations)
      context_.advance(t, sums, masses, plain(tile, w), query(tile, w));
    else
      context_.update.output(sums, masses, out_ + sample * context_.votes_size);
  }

  // The query of a window in one iteration, from the sums of those before.
  void restore(const Tile& tile, int64_t example, int64_t w, int64_t iteration, const T* sums, const T* masses) const {
    const int64_t sample = example * votes_.windows + w;
    std::fill_n(plain(tile, w), context_.votes_size, T(0));
    for (int64_t t = 0; t < iteration; t++)
      context_.advance(t, context_.sums_at(sums, t, sample), context_.masses_at(masses, t, sample), plain(tile, w),
                       query(tile, w));
  }

  void write_unit(const Tile& tile, Worker& self, const Unit& unit, int64_t example, int64_t iteration,
                  T* coupling) {
    Bench<T>& bench = self.bench;
    for_couplings(bench, unit, example, tile.queries, iteration,
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
  std::vector<Tile> tiles_;
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
