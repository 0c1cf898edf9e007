// Exact backward of the EM family, all iterations unrolled; derivation in routing/em/README.md.
//
// For t = T-1 .. 1 one pass over the votes takes the couplings R and the gradients g of their logits, keeps both
// as coefficients, and sums what the Gaussians of iteration t-1 receive. As every gradient of a vote is then a
// known combination of straight lines in that vote, one last pass forms it and spends it on poses and weights.
// Where couplings are constants, the last M-step is all there is, and one pass does everything.
#include "child_gradients.h"
#include "em_context.h"
#include "em_gradient_steps.h"
#include "em_mapping_gradient.h"

namespace torchcaps {
namespace em {
namespace {

template <class T>
struct Gradients {
  T* poses;        // (B, I, R * K)
  T* activations;  // (B, I)
  T* weight;       // (transforms, J, K, D / R)
  T* bias;         // (transforms, J, D), or null
  T* beta_a;       // (J), or null like the betas
  T* beta_u;       // (J)
  T* worth;        // (C, J), or null like the worth
  T* threshold;    // (B, S, J)
  T* logits;       // (B, S, N, J) of the initial logits, or null where nobody asks for it
};

template <class T, class Shape>
class Backward {
 public:
  Backward(const Votes<T>& votes, const EmOptions<T>& options, int threads, const T* state, const T* out_poses,
           const T* out_activations, const T* out_logits, const Gradients<T>& gradients)
      : context_(votes, options, threads),
        votes_(votes),
        options_(options),
        layout_(context_.layout),
        mapping_(context_.mapping),
        gradient_(mapping_, options, layout_, context_.inverse_mass),
        detached_(options.detach && options.iterations > 1),
        terms_(num_terms(detached_ ? 1 : options.iterations)),
        state_(state),
        out_poses_(out_poses),
        out_activations_(out_activations),
        out_logits_(out_logits),
        gradients_(gradients),
        workers_(context_.threads) {
    const int64_t bytes = int64_t(sizeof(Vec<T>)), sums = Sums<T>::registers(layout_) * votes.windows * bytes;
    const int64_t per_window = Gaussians<T>::registers(layout_) + Arriving<T>::registers(layout_) +
                               Response<T>::registers(layout_) + 2 * terms_ * layout_.entries() +
                               votes.slots * coefficients();
    const int64_t kept = votes.transforms * (context_.weight_registers + (votes.bias ? layout_.entries() : 0)) * bytes;
    cut_ = context_.cut(per_window * votes.windows * bytes + sums, sums, kept);
    tiles_.resize(cut_.tiles(context_.threads));
    parts_.resize(cut_.parts());
    const int64_t windows = cut_.tile * votes.windows;
    for (Tile& tile : tiles_) {
      tile.gaussians = take(windows * Gaussians<T>::registers(layout_));
      tile.arriving = take(windows * Arriving<T>::registers(layout_));
      tile.responses = take(windows * Response<T>::registers(layout_));
      tile.lines = take(windows * 2 * terms_ * layout_.entries());
      tile.coefficients = take(windows * votes.slots * coefficients());
      tile.sums = take(cut_.pieces * windows * Sums<T>::registers(layout_));
    }
    for (Worker& worker : workers_) {
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
      worker.at_hand.take(context_.frame, layout_, context_.most_competing);
      for (Vec<T>*& records : worker.records) records = take(this->records());
      worker.totals = take(2 * layout_.vectors);
      worker.pose = take(Plan::largest_unit * votes.pose_size());
    }
    for (Part& part : parts_) {
      part.beta = take(2 * layout_.vectors);
      part.worth = context_.worth ? take(options.worth_types * layout_.vectors) : nullptr;
      part.collected.take(context_, true, votes.bias);
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
                          [&](int64_t n) { return parts_[n].collected.weight; }, gradients_.weight);
      if (votes_.bias)
        write_transforms<T>(crew, votes_, layout_.vectors, count, layout_.size,
                            [&](int64_t n) { return parts_[n].collected.bias; }, gradients_.bias);
      if (gradients_.worth)
        write_rows<T>(crew, options_.worth_types, votes_.parents, layout_.vectors, count, 1,
                      [&](int64_t n) { return parts_[n].worth; }, gradients_.worth);
      if (gradients_.beta_a) write_betas();
    });
  }

 private:
  // Examples that are worked on together; their windows are numbered through.
  struct Tile {
    Vec<T>* gaussians;     // [windows]: of iteration t - 1; in the last pass their means are those of iteration 0
    Vec<T>* arriving;      // [windows]: at the Gaussians of iteration t
    Vec<T>* responses;     // [windows]: of iteration t
    Vec<T>* lines;         // [windows][vectors][D][terms][2]
    Vec<T>* coefficients;  // [windows][N][vectors][terms - 1]
    Vec<T>* sums;          // [pieces][windows]: over the children of a piece
  };

  // What is gathered over many examples, block by block or piece by piece.
  struct Part {
    Vec<T>* beta;   // [2][vectors]: gradients of beta_a, beta_u
    Vec<T>* worth;  // [C][vectors]: gradients of the worth, or null
    Collected<T, Shape> collected;
  };

  struct Worker {
    Vec<T>* records[3];  // of one window: iterations t, t - 1 and 0
    Vec<T>* totals;      // [2][vectors]: what parents share, of the window at hand
    Vec<T>* pose;        // [unit][R * K]: gradients of the poses at hand, lanes not yet summed
    Responses<T> at_hand;
    Bench<T> bench;
    Part* part;          // where it gathers
  };

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
      for (int64_t w = mine.first; w < mine.last; w++) receive(tile, workers_[who], first, w);
    });
    for (int64_t t = options_.iterations - 1;; t--) {
      hands.share(windows, [&](int64_t piece, int who, Range mine) {
        Worker& self = at_work(who, parts[piece]);
        for (int64_t w = mine.first; w < mine.last; w++) {
          if (w == mine.first || w % votes_.windows == 0 || !mapping_.totals_of_example())
            total(tile, self, first, w, t);
          prepare(tile, self, first, w, t);
        }
      });
      visit(hands, tile, parts, first, last, t);
      if (t == 0 || detached_) break;
      hands.share(windows, [&](int64_t, int, Range mine) {
        for (int64_t w = mine.first; w < mine.last; w++) {
          gather(hands, tile, windows, w);
          hand_down(tile, w);
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
    clear(gradients_.activations, votes_.children);
    clear(gradients_.poses, votes_.children * votes_.pose_size());
    if (gradients_.logits) clear(gradients_.logits, votes_.windows * votes_.slots * votes_.parents);  // without a vote, too
  }

  const Vec<T>* load_records(Worker& self, int which, int64_t first, int64_t w, int64_t t) const {
    const int64_t example = first + w / votes_.windows, window = w % votes_.windows;
    const T* source = state_ + record_place(layout_, example, t, options_.iterations, window) * Simd<T>::width;
    std::memcpy(self.records[which], source, records() * sizeof(Vec<T>));
    return self.records[which];
  }

  Record<T> record(const Vec<T>* records, int v) const {
    return {const_cast<Vec<T>*>(records) + v * record_registers(layout_), layout_.size};
  }

  // The gradients of the results arrive at the last Gaussians.
  void receive(const Tile& tile, Worker& self, int64_t first, int64_t w) const {
    const Arriving<T> arriving(tile.arriving + w * Arriving<T>::registers(layout_), layout_);
    const Vec<T>* records = load_records(self, 0, first, w, options_.iterations - 1);
    const int64_t parents = (first * votes_.windows + w) * votes_.parents;
    for (int v = 0; v < layout_.vectors; v++) {
      Vec<T> grad_activation{}, grad_logit{};
      for (int lane = 0; lane < Simd<T>::width && v * Simd<T>::width + lane < votes_.parents; lane++) {
        const int64_t parent = parents + v * Simd<T>::width + lane;
        grad_activation[lane] = out_activations_[parent];
        if (out_logits_) grad_logit[lane] = out_logits_[parent];
      }
      gradient_.receive(record(records, v), grad_activation, grad_logit, arriving.log_weight[v], arriving.logit[v]);
    }
    pack_parents<T>(out_poses_ + parents * layout_.size, votes_.parents, layout_.size, layout_.vectors, arriving.mean);
    std::fill(arriving.variance, arriving.variance + layout_.entries(), Vec<T>{});
  }

  // One register of what the forward kept of window w.
  Vec<T> kept(int64_t first, int64_t w, int64_t t, int v, int64_t place) const {
    const int64_t example = first + w / votes_.windows, window = w % votes_.windows;
    const int64_t start = record_place(layout_, example, t, options_.iterations, window);
    return load(state_ + (start + v * record_registers(layout_) + place) * Simd<T>::width);
  }

  // What the parents of window w lose through what they share with others of the example.
  void total(const Tile& tile, Worker& self, int64_t first, int64_t w, int64_t t) const {
    const int64_t window = w % votes_.windows, start = w - window, logit = 2 * layout_.size, mass = logit + 2;
    const auto arriving = [&](int64_t other) {
      return Arriving<T>(tile.arriving + (start + other) * Arriving<T>::registers(layout_), layout_);
    };
    gradient_.total(
        first + w / votes_.windows, window,
        [&](int64_t other, int v) { return kept(first, start + other, t, v, mass); },
        [&](int64_t other, int v) { return kept(first, start + other, t, v, logit); },
        [&](int64_t other, int v) { return arriving(other).log_weight[v]; },
        [&](int64_t other, int v) { return arriving(other).logit[v]; }, self.totals, self.totals + layout_.vectors);
  }

  // Turns what arrives at the Gaussians of iteration t into the response of its M-step, and notes the lines of
  // iteration t; fills the Gaussians of iteration t - 1.
  void prepare(const Tile& tile, Worker& self, int64_t first, int64_t w, int64_t t) const {
    const int64_t example = first + w / votes_.windows;
    const int size = layout_.size;
    const T epsilon = mapping_.epsilon();
    const T old_share = T(options_.damping), new_share = T(1 - options_.damping);
    const T stretch = T(options_.damping / (1 - options_.damping));
    const Vec<T>* now = load_records(self, 0, first, w, t);
    const Vec<T>* start = load_records(self, 2, first, w, 0);
    const Gaussians<T> gaussians(tile.gaussians + w * Gaussians<T>::registers(layout_), layout_);
    prepare_gaussians(votes_, layout_, load_records(self, 1, first, w, t > 0 ? t - 1 : 0), gaussians);
    const Arriving<T> arriving(tile.arriving + w * Arriving<T>::registers(layout_), layout_);
    const Response<T> response(tile.responses + w * Response<T>::registers(layout_), layout_);
    for (int v = 0; v < layout_.vectors; v++) {
      const Record<T> found = record(now, v);
      const Spent<T> spent = gradient_.spend(found, arriving.log_weight[v], arriving.logit[v], v, example, t,
                                             self.totals[v], self.part->beta[v], self.part->beta[layout_.vectors + v]);
      const Vec<T> mass = found.mass(), zero{};
      const Divisors<T> divisors = mapping_.divisors(mass);
      const auto starved = divisors.starved;
      const Vec<T> missing = starved ? T(1) - mass * divisors.of_mean : zero;  // a starved mean is drawn towards 0
      Vec<T> constant = spent.mass;
      for (int h = v * size; h < (v + 1) * size; h++) {
        const Vec<T> mean = found.mean()[h - v * size], variance = found.variance()[h - v * size];
        const Vec<T> grad_variance = arriving.variance[h] + spent.precision / variance;
        Vec<T> grad_mean = arriving.mean[h], lag{};  // of the damped mean behind the new one
        if (options_.damping > 0) {
          lag = stretch * (mean - (t > 0 ? gaussians.mean[h] : zero));
          grad_mean -= T(2) * grad_variance * lag;
        }
        Vec<T> linear = divisors.of_mean * (grad_mean - T(2) * grad_variance * mean * missing);
        const Vec<T> quadratic = divisors.of_variance * grad_variance;
        if (options_.damping > 0) {
          // the rest belongs to the mean of iteration t - 1, and waits here for what its E-step brings
          arriving.mean[h] = old_share * (grad_mean - T(2) * grad_variance * mean * missing);
          linear *= new_share;
          constant -= starved ? zero : linear * lag;
        }
        constant += starved ? linear * mean : quadratic * (epsilon - variance);
        response.linear[h] = linear;
        response.quadratic[h] = quadratic;
        response.difference[h] = gaussians.mean[h] - mean;
        if (!detached_)
          note_lines(tile, gaussians, record(start, v).mean()[h - v * size], mean, linear, quadratic, w, h, t);
      }
      response.constant[v] = mapping_.real_lanes(constant, v);
      response.logit[v] = spent.logit;
      if (gradients_.threshold) write_threshold(example, w % votes_.windows, v, t, spent.logit);
    }
  }

  // A threshold takes part in every iteration that has gradients.
  void write_threshold(int64_t example, int64_t window, int v, int64_t t, Vec<T> logit) const {
    T* const target = gradients_.threshold + (example * votes_.windows + window) * votes_.parents + v * Simd<T>::width;
    for (int lane = 0; lane < Simd<T>::width && v * Simd<T>::width + lane < votes_.parents; lane++)
      target[lane] = logit[lane] + (t + 1 < options_.iterations ? target[lane] : T(0));
  }

  void note_lines(const Tile& tile, const Gaussians<T>& before, Vec<T> start, Vec<T> mean, Vec<T> linear,
                  Vec<T> quadratic, int64_t w, int h, int64_t t) const {
    Vec<T>* lines = tile.lines + (w * layout_.entries() + h) * 2 * terms_;
    Vec<T>* m_step = lines + 2 * (t > 0 ? 2 * t - 1 : 0);
    m_step[0] = T(2) * quadratic;
    m_step[1] = linear + T(2) * quadratic * (start - mean);
    if (t == 0) return;
    m_step[2] = -before.precision[h];
    m_step[3] = before.precision[h] * (before.mean[h] - start);
  }

  void visit(const Hands& hands, const Tile& tile, Part* parts, int64_t first, int64_t last, int64_t t) {
    const int64_t registers = (last - first) * votes_.windows * Sums<T>::registers(layout_);
    hands.share(int64_t(context_.plan.units.size()), [&](int64_t piece, int who, Range units) {
      Worker& self = at_work(who, parts[piece]);
      Vec<T>* const sums = tile.sums + piece * registers;
      if (t > 0 && !detached_) std::fill(sums, sums + registers, Vec<T>{});
      for (int64_t k = units.first; k < units.last; k++) {
        const Unit& unit = context_.plan.units[k];
        for (int64_t e = 0; e < last - first; e++) {
          const int64_t base = e * votes_.windows;
          if (detached_)
            finish_detached_unit(unit, first + e, tile, self, base);
          else if (t > 0)
            visit_unit(unit, first + e, tile, self, sums, base, t);
          else if (context_.initial_logits)
            finish_unit_with_logits(unit, first + e, tile, self, base);
          else
            finish_unit(unit, first + e, tile, self, base);
        }
      }
    });
  }

  // Couplings of iteration t and the gradients of their logits, for one unit.
  void visit_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, Vec<T>* all_sums, int64_t base,
                  int64_t t) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    const Vec<T>* gaussians = tile.gaussians + base * Gaussians<T>::registers(layout_);
    T* grad_activations = gradients_.activations + example * votes_.children + unit.child;
    context_.for_competitions(num_sights, [&](int start, int count) {
      const Sight* sights = bench.sights + start;
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        context_.template e_step<Block>(bench, gaussians, t - 1, sights, count, offset, false);
        for (int k = 0; k < count; k++) {
          const Response<T> window(
              tile.responses + (base + sights[k].window) * Response<T>::registers(layout_), layout_);
          respond<Block, T>(bench.delta + k * Block * entries(), window, vectors(), size(),
                            self.at_hand.response + k * Block * vectors());
          if (context_.worth) respond_worth<Block>(self, window, sights[k], k, offset);
        }
        T totals[Block];
        self.at_hand.template sum<Block>(bench, vectors(), count, totals);
        self.at_hand.template average<Block>(bench, vectors(), count, totals, context_.position);
        for (int m = 0; m < Block; m++)
          if (bench.children[offset + m].votes) grad_activations[offset + m] += totals[m];
        for (int k = 0; k < count; k++) {
          const int64_t slot = (base + sights[k].window) * votes_.slots + sights[k].slot + offset;
          differentiate<Block>(self, k, offset, t, tile.coefficients + slot * coefficients());
        }
        for (int k = 0; k < count; k++) {
          const Sums<T> sums(all_sums + (base + sights[k].window) * Sums<T>::registers(layout_), layout_);
          accumulate<Block, T>(bench.delta + k * Block * entries(),
                               self.at_hand.response + k * Block * vectors(), vectors(), size(),
                               sums);
        }
      });
    });
  }

  // What it is worth to use the children of a block in window k joins their responses, and gets its gradients.
  template <int Block>
  void respond_worth(Worker& self, const Response<T>& window, const Sight& sight, int k, int offset) const {
    for (int m = 0; m < Block; m++) {
      const int64_t slot = sight.slot + offset + m;
      const T activation = self.bench.children[offset + m].activation;
      const Vec<T>* worth = context_.worth_of(slot);
      Vec<T>* grad_worth = self.part->worth + (worth - context_.worth);
      for (int v = 0; v < vectors(); v++) {
        const int at = (k * Block + m) * vectors() + v;
        self.at_hand.response[at] += window.logit[v] * worth[v];
        grad_worth[v] += window.logit[v] * self.bench.coupling[at] * activation;
      }
    }
  }

  // The responses of window k become gradients of logits; these and R a are kept as coefficients.
  template <int Block>
  void differentiate(Worker& self, int k, int offset, int64_t t, Vec<T>* coefficients) const {
    const T sharp = T(options_.inverse_temperature[t - 1]);
    for (int m = 0; m < Block; m++) {
      const T activation = self.bench.children[offset + m].activation;
      const Vec<T>* mean = self.at_hand.mean + m * vectors();
      const Vec<T>* coupling = self.bench.coupling + (k * Block + m) * vectors();
      Vec<T>* response = self.at_hand.response + (k * Block + m) * vectors();
      Vec<T>* target = coefficients + m * this->coefficients() + 2 * t - 2;
      for (int v = 0; v < vectors(); v++, target += terms_ - 1) {
        const Vec<T> weight = coupling[v] * activation;
        target[0] = weight;
        target[1] = response[v] = sharp * weight * (response[v] - mean[v]);
      }
    }
  }

  // Adds up what the pieces have summed for a window, into the place of the first.
  void gather(const Hands& hands, const Tile& tile, int64_t windows, int64_t w) {
    const int64_t count = Sums<T>::registers(layout_);
    for (int64_t piece = 1; piece < hands.pieces; piece++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) tile.sums[k] += tile.sums[piece * windows * count + k];
  }

  // Gradients of the logits become gradients of the Gaussians they were computed from.
  void hand_down(const Tile& tile, int64_t w) const {
    const Sums<T> sums(tile.sums + w * Sums<T>::registers(layout_), layout_);
    const Gaussians<T> gaussians(tile.gaussians + w * Gaussians<T>::registers(layout_), layout_);
    const Arriving<T> arriving(tile.arriving + w * Arriving<T>::registers(layout_), layout_);
    for (int v = 0; v < vectors(); v++) {
      arriving.log_weight[v] = sums.mass[v];
      arriving.logit[v] = Vec<T>{};
      for (int h = v * layout_.size; h < (v + 1) * layout_.size; h++) {
        const Vec<T> precision = gaussians.precision[h];
        const Vec<T> waiting = arriving.mean[h];  // from the damped mean of iteration t
        arriving.mean[h] = sums.first[h] * precision;
        if (options_.damping > 0) arriving.mean[h] += waiting;
        arriving.variance[h] = T(0.5) * precision * (sums.second[h] * precision - sums.mass[v]);
      }
    }
  }

  // The last pass for one unit: gradients of its votes, spent on poses, activations and weights.
  void finish_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, int64_t base) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    if (num_sights == 0) return;
    const int64_t pose_size = votes_.pose_size();
    const T coupling = context_.equal_coupling(num_sights);
    std::fill(self.pose, self.pose + unit.count * pose_size, Vec<T>{});
    Vec<T> responses[Plan::largest_unit] = {};
    for (int k = 0; k < num_sights; k++) {
      const Sight sight = bench.sights[k];
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        form_vote_gradients<decltype(block_size)::value>(tile, self, sight, offset, base, coupling, responses);
        for (int m = 0; m < decltype(block_size)::value; m++)
          spend(self, sight.slot + offset + m, bench.delta + m * entries(),
                              bench.children[offset + m].pose, offset + m);
      });
    }
    const int64_t child = example * votes_.children + unit.child;
    T sums[Plan::largest_unit];
    combine_lanes<T>(responses, unit.count, Add(), sums);
    for (int m = 0; m < unit.count; m++) {
      if (!bench.children[m].votes) continue;
      gradients_.activations[child + m] += coupling * sums[m];
      write_pose(self, m, gradients_.poses + (child + m) * pose_size);
    }
  }

  void spend(Worker& self, int64_t slot, const Vec<T>* grad_vote, const T* from_pose, int child) const {
    self.part->collected.spend(context_, slot, grad_vote, from_pose, self.pose + child * votes_.pose_size());
  }

  void write_pose(const Worker& self, int m, T* target) const {
    const int64_t size = votes_.pose_size();
    combine_lanes<T>(self.pose + m * size, int(size), Add(), target);
  }

  // The same where the first couplings are those of logits, which have gradients of their own.
  void finish_unit_with_logits(const Unit& unit, int64_t example, const Tile& tile, Worker& self, int64_t base) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    if (num_sights == 0) return;
    const int64_t pose_size = votes_.pose_size(), child = example * votes_.children + unit.child;
    std::fill(self.pose, self.pose + unit.count * pose_size, Vec<T>{});
    context_.for_competitions(num_sights, [&](int start, int count) {
      const Sight* sights = bench.sights + start;
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        context_.template first_step<Block>(bench, example, sights, count, offset, num_sights);
        for (int k = 0; k < count; k++) {
          const int64_t w = base + sights[k].window;
          const Response<T> window(tile.responses + w * Response<T>::registers(layout_), layout_);
          Vec<T>* delta = bench.delta + k * Block * entries();
          context_.template centre_votes<Block>(
              bench, sights[k], offset, tile.gaussians + w * Gaussians<T>::registers(layout_), delta);
          respond<Block, T>(delta, window, vectors(), size(),
                            self.at_hand.response + k * Block * vectors());
          if (context_.worth) respond_worth<Block>(self, window, sights[k], k, offset);
        }
        T totals[Block];
        self.at_hand.template sum<Block>(bench, vectors(), count, totals);
        self.at_hand.template average<Block>(bench, vectors(), count, totals, context_.position);
        for (int m = 0; m < Block; m++)
          if (bench.children[offset + m].votes) gradients_.activations[child + offset + m] += totals[m];
        for (int k = 0; k < count; k++) {
          differentiate_logits<Block>(self, example, sights[k], k, offset);
          Vec<T> unused[Block] = {};  // responses, which are known already
          line_up_gradients<Block>(tile, sights[k], offset, base, bench.coupling + k * Block * vectors(),
                                   bench.delta + k * Block * entries(), unused);
          for (int m = 0; m < Block; m++)
            spend(self, sights[k].slot + offset + m,
                                 bench.delta + (k * Block + m) * entries(), bench.children[offset + m].pose,
                                 offset + m);
        }
      });
    });
    for (int m = 0; m < unit.count; m++)
      if (bench.children[m].votes)
        write_pose(self, m, gradients_.poses + (child + m) * pose_size);
  }

  // Gradients of the initial logits of a block in window k; leaves R a in the place of the couplings.
  template <int Block>
  void differentiate_logits(Worker& self, int64_t example, const Sight& sight, int k, int offset) const {
    for (int m = 0; m < Block; m++) {
      const Child<T>& child = self.bench.children[offset + m];
      Vec<T>* coupling = self.bench.coupling + (k * Block + m) * vectors();
      Vec<T>* response = self.at_hand.response + (k * Block + m) * vectors();
      for (int v = 0; v < vectors(); v++) {
        coupling[v] *= child.activation;
        response[v] = coupling[v] * (response[v] - self.at_hand.mean[m * vectors() + v]);
      }
      if (gradients_.logits && child.votes)
        unpack_parents<T>(response, votes_.parents, 1, vectors(),
                          gradients_.logits + context_.coupling_at(example, sight, offset + m));
    }
  }

  // The only pass for one unit where couplings are constants: E-step, and what the last M-step gives back.
  void finish_detached_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, int64_t base) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    if (num_sights == 0) return;
    const int64_t pose_size = votes_.pose_size(), child = example * votes_.children + unit.child;
    const Vec<T>* gaussians = tile.gaussians + base * Gaussians<T>::registers(layout_);
    std::fill(self.pose, self.pose + unit.count * pose_size, Vec<T>{});
    context_.for_competitions(num_sights, [&](int start, int count) {
      const Sight* sights = bench.sights + start;
      context_.for_blocks(unit.count, [&](auto block_size, int offset) {
        constexpr int Block = decltype(block_size)::value;
        context_.template e_step<Block>(bench, gaussians, options_.iterations - 2, sights, count, offset, false);
        T activations[Block], totals[Block];
        for (int m = 0; m < Block; m++) activations[m] = bench.children[offset + m].activation;
        for (int k = 0; k < count; k++) {
          const Response<T> window(
              tile.responses + (base + sights[k].window) * Response<T>::registers(layout_), layout_);
          Vec<T>* delta = bench.delta + k * Block * entries();
          respond<Block, T>(delta, window, vectors(), size(),
                            self.at_hand.response + k * Block * vectors());
          if (context_.worth) respond_worth<Block>(self, window, sights[k], k, offset);
          m_step_gradients<Block, T>(bench.coupling + k * Block * vectors(), activations, window,
                                     vectors(), size(), delta);
        }
        self.at_hand.template sum<Block>(bench, vectors(), count, totals);
        for (int m = 0; m < Block; m++) {
          if (!bench.children[offset + m].votes) continue;
          gradients_.activations[child + offset + m] += totals[m];
          for (int k = 0; k < count; k++)
            spend(self, sights[k].slot + offset + m,
                                 bench.delta + (k * Block + m) * entries(), bench.children[offset + m].pose,
                                 offset + m);
        }
      });
    });
    for (int m = 0; m < unit.count; m++)
      if (bench.children[m].votes)
        write_pose(self, m, gradients_.poses + (child + m) * pose_size);
  }

  // Fills bench.delta with the gradients of the votes of a block, and adds the response of the first M-step.
  template <int Block>
  void form_vote_gradients(const Tile& tile, Worker& self, const Sight& sight, int offset, int64_t base, T coupling,
                           Vec<T>* responses) {
    Bench<T>& bench = self.bench;
    const int64_t w = base + sight.window;
    const Vec<T>* start = tile.gaussians + w * Gaussians<T>::registers(layout_);
    const Response<T> window(tile.responses + w * Response<T>::registers(layout_), layout_);
    for (int m = 0; m < Block; m++)
      std::fill_n(bench.coupling + m * vectors(), vectors(),
                  broadcast<T>(coupling * bench.children[offset + m].activation));
    context_.template centre_votes<Block>(bench, sight, offset, start, bench.delta);
    Vec<T> doubled[Block] = {};
    line_up_gradients<Block>(tile, sight, offset, base, bench.coupling, bench.delta, doubled);
    for (int m = 0; m < Block; m++) {
      responses[offset + m] += T(0.5) * doubled[m];
      for (int v = 0; v < vectors(); v++) responses[offset + m] += window.constant[v];
      if (!context_.worth) continue;
      const Vec<T>* worth = context_.worth_of(sight.slot + offset + m);
      Vec<T>* grad_worth = self.part->worth + (worth - context_.worth);
      for (int v = 0; v < vectors(); v++) {
        responses[offset + m] += window.logit[v] * worth[v];
        grad_worth[v] += window.logit[v] * bench.coupling[m * vectors() + v];
      }
    }
  }

  // `delta` of a block, from the mean of iteration 0, becomes the gradients of its votes; `first` is R a at the start.
  template <int Block>
  void line_up_gradients(const Tile& tile, const Sight& sight, int offset, int64_t base, const Vec<T>* first,
                         Vec<T>* delta, Vec<T>* doubled) const {
    const int64_t w = base + sight.window;
    const Vec<T>* coefficients[Block];
    for (int m = 0; m < Block; m++)
      coefficients[m] = tile.coefficients + (w * votes_.slots + sight.slot + offset + m) * this->coefficients();
    with_terms(terms_, [&](auto terms) {
      vote_gradients<Block, decltype(terms)::value, T>(tile.lines + w * 2 * terms_ * entries(), coefficients,
                                                       first, terms_, vectors(), size(), delta, doubled);
    });
  }

  void write_betas() const {
    for (int64_t j = 0; j < votes_.parents; j++) {
      const int v = int(j / Simd<T>::width), lane = int(j % Simd<T>::width);
      T beta_a = 0, beta_u = 0;
      for (const Part& part : parts_) {
        beta_a += part.beta[v][lane];
        beta_u += part.beta[vectors() + v][lane];
      }
      gradients_.beta_a[j] = beta_a;
      gradients_.beta_u[j] = beta_u;
    }
  }

  int64_t records() const { return int64_t(vectors()) * record_registers(layout_); }
  int64_t coefficients() const { return int64_t(vectors()) * (terms_ - 1); }  // of one slot
  int vectors() const { return context_.vectors(); }
  int size() const { return context_.shape.size; }
  int entries() const { return context_.entries(); }
  Vec<T>* take(int64_t registers) { return context_.frame.template take<Vec<T>>(registers); }

  Context<T, Shape> context_;
  const Votes<T>& votes_;
  const EmOptions<T>& options_;
  const Layout<T>& layout_;
  const Mapping<T>& mapping_;
  const MappingGradient<T> gradient_;
  const bool detached_;
  const int terms_;
  const T *state_, *out_poses_, *out_activations_, *out_logits_;
  const Gradients<T> gradients_;
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
