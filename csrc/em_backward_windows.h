// The backward pass of the EM family, window by window: from what arrives at the Gaussians of an iteration to the
// responses of its M-step, and on to the Gaussians before.
#pragma once
#include "em_backward_call.h"

namespace torchcaps {
namespace em {

template <class T, class Shape>
class BackwardWindows {
  using Tile = BackwardTile<T>;
  using Worker = BackwardWorker<T, Shape>;

 public:
  explicit BackwardWindows(const BackwardCall<T, Shape>& call) : call_(call) {}

  // The gradients of the results arrive at the last Gaussians.
  void receive(const Tile& tile, Worker& self, int64_t first, int64_t w) const {
    const Arriving<T> arriving(tile.arriving + w * Arriving<T>::registers(layout_), layout_);
    const Vec<T>* records = load_records(self, 0, first, w, options_.iterations - 1);
    const int64_t parents = (first * votes_.windows + w) * votes_.parents;
    for (int v = 0; v < layout_.vectors; v++) {
      Vec<T> grad_activation{}, grad_logit{};
      for (int lane = 0; lane < Simd<T>::width && v * Simd<T>::width + lane < votes_.parents; lane++) {
        const int64_t parent = parents + v * Simd<T>::width + lane;
        grad_activation[lane] = call_.out_activations[parent];
        if (call_.out_logits) grad_logit[lane] = call_.out_logits[parent];
      }
      call_.gradient.receive(record(records, v), grad_activation, grad_logit, arriving.log_weight[v], arriving.logit[v]);
    }
    pack_parents<T>(call_.out_poses + parents * layout_.size, votes_.parents, layout_.size, layout_.vectors, arriving.mean);
    std::fill(arriving.variance, arriving.variance + layout_.entries(), Vec<T>{});
  }

  // What the parents of window w lose through what they share with others of the example.
  void total(const Tile& tile, Worker& self, int64_t first, int64_t w, int64_t t) const {
    const int64_t window = w % votes_.windows, start = w - window, logit = 2 * layout_.size, mass = logit + 2;
    const auto arriving = [&](int64_t other) {
      return Arriving<T>(tile.arriving + (start + other) * Arriving<T>::registers(layout_), layout_);
    };
    call_.gradient.total(
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
    if (t > 0)
      prepare_gaussians(votes_, layout_, load_records(self, 1, first, w, t - 1), gaussians);
    else
      for (int v = 0; v < layout_.vectors; v++) std::copy_n(record(start, v).mean(), size, gaussians.mean + v * size);
    const Arriving<T> arriving(tile.arriving + w * Arriving<T>::registers(layout_), layout_);
    const Response<T> response(tile.responses + w * Response<T>::registers(layout_), layout_);
    for (int v = 0; v < layout_.vectors; v++) {
      const Record<T> found = record(now, v);
      const Spent<T> spent = call_.gradient.spend(found, arriving.log_weight[v], arriving.logit[v], v, example, t,
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
        if (!call_.detached)
          note_lines(tile, gaussians, record(start, v).mean()[h - v * size], mean, linear, quadratic, w, h, t);
      }
      response.constant[v] = mapping_.real_lanes(constant, v);
      response.logit[v] = spent.logit;
      if (call_.gradients.threshold) write_threshold(example, w % votes_.windows, v, t, spent.logit);
    }
  }

  // Adds up what the pieces have summed for a window, into the place of the first.
  void gather(const Hands& hands, const Tile& tile, int64_t windows, int64_t w) const {
    const int64_t count = Sums<T>::registers(layout_);
    for (int64_t piece = 1; piece < hands.pieces; piece++)
      for (int64_t k = w * count; k < (w + 1) * count; k++) tile.sums[k] += tile.sums[piece * windows * count + k];
  }

  // Gradients of the logits become gradients of the Gaussians they were computed from.
  void hand_down(const Tile& tile, int64_t w) const {
    const Sums<T> sums(tile.sums + w * Sums<T>::registers(layout_), layout_);
    const Gaussians<T> gaussians(tile.gaussians + w * Gaussians<T>::registers(layout_), layout_);
    const Arriving<T> arriving(tile.arriving + w * Arriving<T>::registers(layout_), layout_);
    for (int v = 0; v < layout_.vectors; v++) {
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

 private:
  const Vec<T>* load_records(Worker& self, int which, int64_t first, int64_t w, int64_t t) const {
    const int64_t example = first + w / votes_.windows, window = w % votes_.windows;
    const T* source = call_.state + record_place(layout_, example, t, options_.iterations, window) * Simd<T>::width;
    std::memcpy(self.records[which], source, call_.records() * sizeof(Vec<T>));
    return self.records[which];
  }

  Record<T> record(const Vec<T>* records, int v) const {
    return {const_cast<Vec<T>*>(records) + v * record_registers(layout_), layout_.size};
  }

  // One register of what the forward kept of window w.
  Vec<T> kept(int64_t first, int64_t w, int64_t t, int v, int64_t place) const {
    const int64_t example = first + w / votes_.windows, window = w % votes_.windows;
    const int64_t start = record_place(layout_, example, t, options_.iterations, window);
    return load(call_.state + (start + v * record_registers(layout_) + place) * Simd<T>::width);
  }

  // A threshold takes part in every iteration that has gradients.
  void write_threshold(int64_t example, int64_t window, int v, int64_t t, Vec<T> logit) const {
    T* const target = call_.gradients.threshold + (example * votes_.windows + window) * votes_.parents + v * Simd<T>::width;
    for (int lane = 0; lane < Simd<T>::width && v * Simd<T>::width + lane < votes_.parents; lane++)
      target[lane] = logit[lane] + (t + 1 < options_.iterations ? target[lane] : T(0));
  }

  void note_lines(const Tile& tile, const Gaussians<T>& before, Vec<T> start, Vec<T> mean, Vec<T> linear,
                  Vec<T> quadratic, int64_t w, int h, int64_t t) const {
    Vec<T>* lines = tile.lines + (w * layout_.entries() + h) * 2 * call_.terms;
    Vec<T>* m_step = lines + 2 * (t > 0 ? 2 * t - 1 : 0);
    m_step[0] = T(2) * quadratic;
    m_step[1] = linear + T(2) * quadratic * (start - mean);
    if (t == 0) return;
    m_step[2] = -before.precision[h];
    m_step[3] = before.precision[h] * (before.mean[h] - start);
  }

  const BackwardCall<T, Shape>& call_;
  const Context<T, Shape>& context_ = call_.context;
  const Votes<T>& votes_ = context_.votes;
  const EmOptions<T>& options_ = context_.options;
  const Layout<T>& layout_ = context_.layout;
  const Mapping<T>& mapping_ = context_.mapping;
};

}  // namespace em
}  // namespace torchcaps
