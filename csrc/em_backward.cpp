// Exact backward of the EM family, all iterations unrolled; derivation in routing/em/README.md.
//
// For t = T-1 .. 1 one pass over the votes takes the couplings R and the gradients g of their logits, keeps both
// as coefficients, and sums what the Gaussians of iteration t-1 receive. As every gradient of a vote is then a
// known combination of straight lines in that vote, one last pass forms it and spends it on poses and weights.
// Where couplings are constants, the last M-step is all there is, and one pass does everything.
#include "em_backward_children.h"
#include "em_backward_windows.h"

namespace torchcaps {
namespace em {
namespace {

template <class T, class Shape>
class Backward {
  using Tile = BackwardTile<T>;
  using Part = BackwardPart<T, Shape>;
  using Worker = BackwardWorker<T, Shape>;

 public:
  template <class... Given>
  explicit Backward(const Given&... given)
      : call_(given...), windows_(call_), children_(call_), workers_(context_.threads) {
    const int64_t bytes = int64_t(sizeof(Vec<T>)), sums = Sums<T>::registers(layout_) * votes_.windows * bytes;
    const int64_t per_window = Gaussians<T>::registers(layout_) + Arriving<T>::registers(layout_) +
                               Response<T>::registers(layout_) + 2 * call_.terms * layout_.entries() +
                               votes_.slots * call_.coefficients();
    const int64_t kept = votes_.transforms * (context_.weight_registers + (votes_.bias ? layout_.entries() : 0)) * bytes;
    cut_ = context_.cut(per_window * votes_.windows * bytes + sums, sums, kept);
    tiles_.resize(cut_.tiles(context_.threads));
    parts_.resize(cut_.parts());
    const int64_t windows = cut_.tile * votes_.windows;
    for (Tile& tile : tiles_) {
      tile.gaussians = take(windows * Gaussians<T>::registers(layout_));
      tile.arriving = take(windows * Arriving<T>::registers(layout_));
      tile.responses = take(windows * Response<T>::registers(layout_));
      tile.lines = take(windows * 2 * call_.terms * layout_.entries());
      tile.coefficients = take(windows * votes_.slots * call_.coefficients());
      tile.sums = take(cut_.pieces * windows * Sums<T>::registers(layout_));
    }
    for (Worker& worker : workers_) {
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
      worker.at_hand.take(context_.frame, layout_, context_.most_competing);
      for (Vec<T>*& records : worker.records) records = take(call_.records());
      worker.totals = take(2 * layout_.vectors);
      worker.pose = take(Plan::largest_unit * votes_.pose_size());
    }
    for (Part& part : parts_) {
      part.beta = take(2 * layout_.vectors);
      part.worth = context_.worth ? take(options_.worth_types * layout_.vectors) : nullptr;
      part.collected.take(context_, true, votes_.bias);
    }
  }

  void run() {
    Crew::work(context_.threads, [this](Crew& crew) {
      context_.prepare(crew);
      crew.run(int64_t(parts_.size()), [this](int64_t part, int) { clear(parts_[part]); });
      context_.for_tiles(crew, cut_,
                         [this](const Hands& hands, int64_t first, int64_t last, int64_t part, int64_t home) {
                           descend(hands, tiles_[home], &parts_[part], first, last);
                         });
      const int64_t count = int64_t(parts_.size());
      write_transforms<T>(crew, votes_, layout_.vectors, count, votes_.inner * votes_.outer,
                          [&](int64_t n) { return parts_[n].collected.weight; }, call_.gradients.weight);
      if (votes_.bias)
        write_transforms<T>(crew, votes_, layout_.vectors, count, layout_.size,
                            [&](int64_t n) { return parts_[n].collected.bias; }, call_.gradients.bias);
      if (call_.gradients.worth)
        write_rows<T>(crew, options_.worth_types, votes_.parents, layout_.vectors, count, 1,
                      [&](int64_t n) { return parts_[n].worth; }, call_.gradients.worth);
      if (call_.gradients.beta_a) write_betas();
    });
  }

 private:
  Worker& at_work(int who, Part& part) {
    workers_[who].part = &part;
    return workers_[who];
  }

  void clear(const Part& part) const {
    std::fill(part.beta, part.beta + 2 * layout_.vectors, Vec<T>{});
    if (part.worth) std::fill_n(part.worth, options_.worth_types * layout_.vectors, Vec<T>{});
    part.collected.clear(context_);
  }

  // All iterations, last to first, for the examples [first, last); `parts` are those of the pieces.
  void descend(const Hands& hands, const Tile& tile, Part* parts, int64_t first, int64_t last) {
    const int64_t windows = (last - first) * votes_.windows;
    clear_children(hands, first, last);
    hands.share(windows, [&](int64_t, int who, Range mine) {
      for (int64_t w = mine.first; w < mine.last; w++) windows_.receive(tile, workers_[who], first, w);
    });
    for (int64_t t = options_.iterations - 1;; t--) {
      hands.share(windows, [&](int64_t piece, int who, Range mine) {
        Worker& self = at_work(who, parts[piece]);
        for (int64_t w = mine.first; w < mine.last; w++) {
          if (w == mine.first || w % votes_.windows == 0 || !context_.mapping.totals_of_example())
            windows_.total(tile, self, first, w, t);
          windows_.prepare(tile, self, first, w, t);
        }
      });
      visit(hands, tile, parts, first, last, t);
      if (t == 0 || call_.detached) break;
      hands.share(windows, [&](int64_t, int, Range mine) {
        for (int64_t w = mine.first; w < mine.last; w++) {
          windows_.gather(hands, tile, windows, w);
          windows_.hand_down(tile, w);
        }
      });
    }
  }

  // Children that no window sees get gradient 0.
  void clear_children(const Hands& hands, int64_t first, int64_t last) const {
    const auto clear = [&](T* target, int64_t per_example) {
      hands.share((last - first) * per_example, [&](int64_t, int, Range mine) {
        std::fill(target + first * per_example + mine.first, target + first * per_example + mine.last, T(0));
      });
    };
    clear(call_.gradients.activations, votes_.children);
    clear(call_.gradients.poses, votes_.children * votes_.pose_size());
    if (call_.gradients.logits) clear(call_.gradients.logits, votes_.windows * votes_.slots * votes_.parents);  // without a vote, too
  }

  void visit(const Hands& hands, const Tile& tile, Part* parts, int64_t first, int64_t last, int64_t t) {
    const int64_t registers = (last - first) * votes_.windows * Sums<T>::registers(layout_);
    hands.share(int64_t(context_.plan.units.size()), [&](int64_t piece, int who, Range units) {
      Worker& self = at_work(who, parts[piece]);
      Vec<T>* const sums = tile.sums + piece * registers;
      if (t > 0 && !call_.detached) std::fill(sums, sums + registers, Vec<T>{});
      for (int64_t k = units.first; k < units.last; k++) {
        const Unit& unit = context_.plan.units[k];
        for (int64_t e = 0; e < last - first; e++) {
          const int64_t base = e * votes_.windows;
          if (call_.detached)
            children_.finish_detached_unit(unit, first + e, tile, self, base);
          else if (t > 0)
            children_.visit_unit(unit, first + e, tile, self, sums, base, t);
          else if (context_.initial_logits)
            children_.finish_unit_with_logits(unit, first + e, tile, self, base);
          else
            children_.finish_unit(unit, first + e, tile, self, base);
        }
      }
    });
  }

  void write_betas() const {
    for (int64_t j = 0; j < votes_.parents; j++) {
      const int v = int(j / Simd<T>::width), lane = int(j % Simd<T>::width);
      T beta_a = 0, beta_u = 0;
      for (const Part& part : parts_) {
        beta_a += part.beta[v][lane];
        beta_u += part.beta[layout_.vectors + v][lane];
      }
      call_.gradients.beta_a[j] = beta_a;
      call_.gradients.beta_u[j] = beta_u;
    }
  }

  Vec<T>* take(int64_t registers) { return context_.frame.template take<Vec<T>>(registers); }

  BackwardCall<T, Shape> call_;
  Context<T, Shape>& context_ = call_.context;
  const Votes<T>& votes_ = context_.votes;
  const EmOptions<T>& options_ = context_.options;
  const Layout<T>& layout_ = context_.layout;
  const BackwardWindows<T, Shape> windows_;
  BackwardChildren<T, Shape> children_;
  std::vector<Worker> workers_;
  std::vector<Tile> tiles_;
  std::vector<Part> parts_;
  typename Context<T, Shape>::Cut cut_;
};

template <class T>
int backward(const Votes<T>* votes, const EmOptions<T>* options, const T* state, const T* out_poses,
             const T* out_activations, const T* out_logits, const Gradients<T>& gradients, int threads) {
  return guarded([&] {
    check(*votes, *options);
    require(state && out_poses && out_activations && (!votes->bias || gradients.bias));
    require(!options->beta_a == !gradients.beta_a && !options->beta_u == !gradients.beta_u);
    require(!options->worth == !gradients.worth && !options->threshold == !gradients.threshold);
    with_shape(*votes, [&](auto shape) {
      using Shape = std::remove_pointer_t<decltype(shape)>;
      Backward<T, Shape>(*votes, *options, threads, state, out_poses, out_activations, out_logits, gradients).run();
    });
  });
}

}  // namespace
}  // namespace em
}  // namespace torchcaps

// `state` is what the forward saved; out_* are the gradients of its results, those of logits may be null. `logits`
// takes the gradient of the initial logits, or is null.
TORCHCAPS_EXPORT int torchcaps_em_backward_f32(const torchcaps::Votes<float>* votes,
                                               const torchcaps::EmOptions<float>* options, const float* state,
                                               const float* out_poses, const float* out_activations,
                                               const float* out_logits, float* poses, float* activations,
                                               float* weight, float* bias, float* beta_a, float* beta_u, float* worth,
                                               float* threshold, float* logits, int threads) {
  return torchcaps::em::backward<float>(votes, options, state, out_poses, out_activations, out_logits,
                                        {poses, activations, weight, bias, beta_a, beta_u, worth, threshold, logits},
                                         threads);
}

TORCHCAPS_EXPORT int torchcaps_em_backward_f64(const torchcaps::Votes<double>* votes,
                                               const torchcaps::EmOptions<double>* options, const double* state,
                                               const double* out_poses, const double* out_activations,
                                               const double* out_logits, double* poses, double* activations,
                                               double* weight, double* bias, double* beta_a, double* beta_u, double* worth,
                                               double* threshold, double* logits, int threads) {
  return torchcaps::em::backward<double>(votes, options, state, out_poses, out_activations, out_logits,
                                         {poses, activations, weight, bias, beta_a, beta_u, worth, threshold, logits},
                                         threads);
}
