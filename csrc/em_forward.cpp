// Forward of the EM family. One pass over the votes per iteration: the E-step of the previous Gaussians and the
// sums of the next M-step, measured from the previous means so that variances do not cancel.
#include "em_context.h"

namespace torchcaps {
namespace em {
namespace {

template <class T, class Shape>
class Forward {
 public:
  Forward(const Votes<T>& votes, const EmOptions<T>& options, int threads, T* poses, T* activations, T* logits,
          T* state)
      : context_(votes, options, threads),
        votes_(votes),
        options_(options),
        layout_(context_.layout),
        mapping_(context_.mapping),
        poses_(poses),
        activations_(activations),
        logits_(logits),
        state_(state),
        workers_(context_.threads) {
    const int64_t sums = Sums<T>::registers(layout_) * votes.windows * int64_t(sizeof(Vec<T>));
    const int64_t per_window = Gaussians<T>::registers(layout_) + layout_.entries() + records();
    cut_ = context_.cut(per_window * votes.windows * int64_t(sizeof(Vec<T>)) + sums, sums, 0);
    tiles_.resize(cut_.tiles(context_.threads));
    const int64_t windows = cut_.tile * votes.windows;
    for (Tile& tile : tiles_) {
      tile.gaussians = take(windows * Gaussians<T>::registers(layout_));
      tile.records = take(windows * records());
      tile.origin = take(windows * layout_.entries());
      tile.sums = take(cut_.pieces * windows * Sums<T>::registers(layout_));
      tile.again = context_.frame.template take<uint8_t>(windows);
    }
    for (Worker& worker : workers_) {
      worker.totals = take(layout_.vectors);
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
    }
  }

  void run() {
    Crew::work(context_.threads, [this](Crew& crew) {
      context_.prepare(crew);
      context_.for_tiles(crew, cut_, [this](const Hands& hands, int64_t first, int64_t last, int64_t, int64_t home) {
        route(hands, tiles_[home], first, last);
      });
    });
  }

 private:
  // Examples that are worked on together; their windows are numbered through.
  struct Tile {
    Vec<T>* gaussians;  // [windows]: where this iteration's votes are measured from
    Vec<T>* records;    // [windows][vectors]: what this iteration finds
    Vec<T>* origin;     // [windows][vectors][D]: the new mean, where the votes are measured from again
    Vec<T>* sums;       // [pieces][windows]: over the children of a piece
    uint8_t* again;     // [windows]: the variance has to be taken again
  };

  struct Worker {
    Vec<T>* totals;  // [vectors]: what parents share, of the window this worker concludes
    Bench<T> bench;
  };

  // All iterations for the examples [first, last).
  void route(const Hands& hands, const Tile& tile, int64_t first, int64_t last) {
    const int64_t windows = (last - first) * votes_.windows;
    hands.share(windows, [&](int64_t, int who, Range mine) {
      for (int64_t w = mine.first; w < mine.last; w++) choose_centre(workers_[who], tile, first, w);
    });
    for (int64_t t = 0; t < options_.iterations; t++) {
      visit(hands, tile, first, last, t, nullptr);
      hands.share(windows, [&](int64_t, int, Range mine) {
        for (int64_t w = mine.first; w < mine.last; w++) {
          gather(hands, tile, windows, w);
          tile.again[w] = fit(tile, w, t, false);
        }
      });
      if (std::find(tile.again, tile.again + windows, 1) != tile.again + windows) {
        visit(hands, tile, first, last, t, tile.again);
        hands.share(windows, [&](int64_t, int, Range mine) {
          for (int64_t w = mine.first; w < mine.last; w++) {
            if (!tile.again[w]) continue;
            gather(hands, tile, windows, w);
            fit(tile, w, t, true);
          }
        });
      }
      hands.share(windows, [&](int64_t, int who, Range mine) {
        Vec<T>* const totals = workers_[who].totals;
        for (int64_t w = mine.first; w < mine.last; w++) {
          if (w == mine.first || w % votes_.windows == 0 || !mapping_.totals_of_example())
            total(tile, first, w, totals);
          conclude(tile, first, w, t, totals);
        }
      });
    }
  }

  // The first votes are measured from the vote of the first slot.
  void choose_centre(Worker& self, const Tile& tile, int64_t first, int64_t w) {
    Bench<T>& bench = self.bench;
    const int64_t example = first + w / votes_.windows, window = w % votes_.windows;
    const int64_t child = votes_.child_at(window, 0);
    const bool votes = votes_.child_votes(example, child);
    bench.children[0].pose =
        votes ? votes_.poses + (example * votes_.children + child) * votes_.pose_size() : context_.no_pose;
    Vec<T>* centre = tile.gaussians + w * Gaussians<T>::registers(layout_);
    std::fill(centre, centre + layout_.entries(), Vec<T>{});
    context_.template centre_votes<1>(bench, Sight{int32_t(window), 0}, 0, centre, bench.delta);
    std::copy(bench.delta, bench.delta + layout_.entries(), centre);
  }

  // Sums over the children; with `again` only those of the marked windows, from the mean found before.
  void visit(const Hands& hands, const Tile& tile, int64_t first, int64_t last, int64_t t, const uint8_t* again) {
    const int64_t registers = (last - first) * votes_.windows * Sums<T>::registers(layout_);
    hands.share(int64_t(context_.plan.units.size()), [&](int64_t piece, int who, Range units) {
      Vec<T>* const sums = tile.sums + piece * registers;
      std::fill(sums, sums + registers, Vec<T>{});
      for (int64_t unit = units.first; unit < units.last; unit++)
        for (int64_t e = 0; e < last - first; e++)
          visit_unit(context_.plan.units[unit], first + e, tile, workers_[who], sums, e * votes_.windows, t, again);
    });
  }

  void visit_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, Vec<T>* all_sums, int64_t base,
                  int64_t t, const uint8_t* again) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    if (again && std::none_of(bench.sights, bench.sights + num_sights,
                              [&](const Sight& sight) { return again[base + sight.window]; }))
      return;
    const Vec<T>* gaussians = tile.gaussians + base * Gaussians<T>::registers(layout_);
    context_.for_competitions(num_sights, [&](int start, int count) {
      const Sight* sights = bench.sights + start;
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        if (t > 0)
          context_.template e_step<Block>(bench, gaussians, t - 1, sights, count, offset, true);
        else
          weigh_first<Block>(bench, example, sights, count, offset, num_sights);
        for (int k = 0; k < count; k++) {
          const int64_t w = base + sights[k].window;
          if (again && !again[w]) continue;
          Vec<T>* delta = bench.delta + k * Block * entries();
          Vec<T>* weight = bench.coupling + k * Block * vectors();
          if (t == 0 || again) {
            const Vec<T>* centre = again ? tile.origin + w * entries()
                                         : gaussians + sights[k].window * Gaussians<T>::registers(layout_);
            context_.template centre_votes<Block>(bench, sights[k], offset, centre, delta);
          }
          const Sums<T> sums(all_sums + w * Sums<T>::registers(layout_), layout_);
          accumulate<Block, T>(delta, weight, vectors(), size(), sums);
          if (context_.worth) weigh_worth<Block>(sights[k].slot + offset, weight, sums);
        }
      });
    });
  }

  template <int Block>
  void weigh_worth(int64_t slot, const Vec<T>* weight, const Sums<T>& sums) const {
    const Vec<T>* worth[Block];
    for (int m = 0; m < Block; m++) worth[m] = context_.worth_of(slot + m);
    accumulate_worth<Block, T>(worth, weight, vectors(), sums.worth);
  }

  // r = R a of the first iteration.
  template <int Block>
  void weigh_first(Bench<T>& bench, int64_t example, const Sight* sights, int count, int offset, int num_sights) const {
    context_.template first_step<Block>(bench, example, sights, count, offset, num_sights);
    for (int at = 0; at < count * Block; at++) {
      Vec<T>* row = bench.coupling + at * vectors();
      for (int v = 0; v < vectors(); v++) row[v] *= bench.children[offset + at % Block].activation;
    }
  }

  // Adds up what the pieces have summed for a window, into the place of the first.
  void gather(const Hands& hands, const Tile& tile, int64_t windows, int64_t w) {
    const int64_t count = Sums<T>::registers(layout_);
    for (int64_t piece = 1; piece < hands.pieces; piece++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) tile.sums[k] += tile.sums[piece * windows * count + k];
  }

  // Mean, variance and mass of a window from its sums; true if the sums were taken too far from the mean.
  bool fit(const Tile& tile, int64_t w, int64_t t, bool again) const {
    const Sums<T> sums(tile.sums + w * Sums<T>::registers(layout_), layout_);
    const Vec<T>* centre = tile.gaussians + w * Gaussians<T>::registers(layout_);
    Vec<T>* origins = tile.origin + w * entries();
    bool far = false;
    for (int v = 0; v < vectors(); v++) {
      const Record<T> record = record_at(tile, w, v);
      const Vec<T> mass = record.mass() = sums.mass[v];
      const Divisors<T> divisors = mapping_.divisors(mass);
      record.logit() = sums.worth[v];
      for (int h = 0; h < layout_.size; h++) {
        const int at = v * layout_.size + h;
        const Moments<T> found = mapping_.fit(divisors, mass, sums.first[at], sums.second[at],
                                              again ? origins[at] : centre[at], t > 0 ? centre[at] : Vec<T>{});
        record.mean()[h] = found.mean;
        record.variance()[h] = found.variance;
        if (again) continue;
        origins[at] = found.mean;
        for (int lane = 0; lane < Simd<T>::width; lane++) far |= found.far[lane] != 0;
      }
    }
    return far;
  }

  // Weights and activations of a window; then its results, and the Gaussians of the next E-step.
  void conclude(const Tile& tile, int64_t first, int64_t w, int64_t t, const Vec<T>* totals) {
    const int64_t example = first + w / votes_.windows, window = w % votes_.windows;
    for (int v = 0; v < vectors(); v++)
      mapping_.conclude(record_at(tile, w, v), v, example, window, t, totals[v]);
    Vec<T>* records = tile.records + w * this->records();
    if (state_) {
      T* target = state_ + record_place(layout_, example, t, options_.iterations, window) * Simd<T>::width;
      std::memcpy(target, records, this->records() * sizeof(Vec<T>));
    }
    if (t + 1 < options_.iterations) {
      const Gaussians<T> gaussians(tile.gaussians + w * Gaussians<T>::registers(layout_), layout_);
      prepare_gaussians(votes_, layout_, records, gaussians);
    } else {
      write_results(tile, example * votes_.windows + window, w);
    }
  }

  // What the parents of window w share with others of its example.
  void total(const Tile& tile, int64_t first, int64_t w, Vec<T>* totals) const {
    const int64_t window = w % votes_.windows, start = w - window;
    mapping_.total(first + w / votes_.windows, window,
                   [&](int64_t other, int v) { return record_at(tile, start + other, v).mass(); }, totals);
  }

  void write_results(const Tile& tile, int64_t target, int64_t w) const {
    for (int v = 0; v < vectors(); v++) {
      const Record<T> record = record_at(tile, w, v);
      const Vec<T> activation = mapping_.activation(record);
      for (int lane = 0; lane < Simd<T>::width && v * Simd<T>::width + lane < votes_.parents; lane++) {
        const int64_t parent = target * votes_.parents + v * Simd<T>::width + lane;
        activations_[parent] = activation[lane];
        logits_[parent] = record.logit()[lane];
      }
    }
    unpack_parents<T>(record_at(tile, w, 0).mean(), votes_.parents, size(), vectors(),
                      poses_ + target * votes_.parents * size(), record_registers(layout_));
  }

  int64_t records() const { return int64_t(vectors()) * record_registers(layout_); }
  Record<T> record_at(const Tile& tile, int64_t w, int v) const {
    return {tile.records + w * records() + v * record_registers(layout_), layout_.size};
  }
  int vectors() const { return context_.vectors(); }
  int size() const { return context_.shape.size; }
  int entries() const { return context_.entries(); }
  Vec<T>* take(int64_t registers) { return context_.frame.template take<Vec<T>>(registers); }

  Context<T, Shape> context_;
  const Votes<T>& votes_;
  const EmOptions<T>& options_;
  const Layout<T>& layout_;
  const Mapping<T>& mapping_;
  T *poses_, *activations_, *logits_, *state_;
  std::vector<Worker> workers_;
  std::vector<Tile> tiles_;
  typename Context<T, Shape>::Cut cut_;
};

template <class T>
int forward(const Votes<T>* votes, const EmOptions<T>* options, T* poses, T* activations, T* logits, T* state,
            int threads) {
  return guarded([&] {
    check(*votes, *options);
    with_shape(*votes, [&](auto shape) {
      using Shape = std::remove_pointer_t<decltype(shape)>;
      Forward<T, Shape>(*votes, *options, threads, poses, activations, logits, state).run();
    });
  });
}

}  // namespace
}  // namespace em
}  // namespace torchcaps

// Poses (B, S, J, D), activations and their logits (B, S, J; for mixing log a) and, if wanted, the state
// (B, T, S, vectors, 2 D + 3, lanes).
TORCHCAPS_EXPORT int torchcaps_em_forward_f32(const torchcaps::Votes<float>* votes,
                                              const torchcaps::EmOptions<float>* options, float* poses,
                                              float* activations, float* logits, float* state, int threads) {
  return torchcaps::em::forward(votes, options, poses, activations, logits, state, threads);
}

TORCHCAPS_EXPORT int torchcaps_em_forward_f64(const torchcaps::Votes<double>* votes,
                                              const torchcaps::EmOptions<double>* options, double* poses,
                                              double* activations, double* logits, double* state, int threads) {
  return torchcaps::em::forward(votes, options, poses, activations, logits, state, threads);
}
