// From the sums of a parent to its Gaussian, to its weight in the E-step and to its activation: what distinguishes the
// members of the EM family. All of it is work per parent; the votes are behind. Derivations are in the READMEs of
// routing/em and routing/vb.
#pragma once
#include "digamma.h"
#include "em_steps.h"

namespace torchcaps {
namespace em {

// A variance is taken again, from the new mean, where old and new mean differ by more than this many variances.
template <class T>
constexpr T recentre_limit = sizeof(T) == 4 ? T(50) : T(1e6);

// What the sums over one register of parents are divided by: their mass, or, for vb, kappa and nu.
template <class T>
struct Divisors {
  Vec<T> of_mean, of_variance;       // the inverses
  typename Simd<T>::Int starved;     // the mass is so small that a constant takes its place
};

// A mean and a variance, and whether the sums were taken too far from that mean.
template <class T>
struct Moments {
  Vec<T> mean, variance;
  typename Simd<T>::Int far;
};

template <class T>
class Mapping {
 public:
  using Options = EmOptions<T>;
  const int64_t kind;

  Mapping(const Votes<T>& votes, const Options& options, const Layout<T>& layout, const T* inverse_mass)
      : kind(options.mapping),
        votes_(votes),
        options_(options),
        layout_(layout),
        inverse_mass_(inverse_mass),
        alone_(kind == Options::vb && options.competition == window_competition),
        by_type_(kind == Options::vb && options.competition == position_competition) {}

  bool is(typename Options::Mapping other) const { return kind == other; }

  // Whether the weight of a parent is its activation, a sigmoid.
  bool weighs_by_sigmoid() const { return !is(Options::mixing) && !is(Options::mass) && !is(Options::vb); }

  // Whether parents of several windows share something, so that their totals hold for a whole example.
  bool totals_of_example() const { return !alone_; }

  T epsilon() const { return is(Options::vb) ? T(0) : T(options_.variance_epsilon); }

  Divisors<T> divisors(Vec<T> mass) const {
    const Vec<T> zero{};
    if (is(Options::vb))
      return {T(1) / (mass + T(options_.prior_kappa)), T(1) / (mass + T(options_.prior_nu)), zero > zero};
    const auto starved = mass < T(smallest_mass);
    const Vec<T> inverse = T(1) / (starved ? zero + T(smallest_mass) : mass);
    return {inverse, inverse, starved};
  }

  // The moments of one entry, from the sums about `origin`; `old` is the mean before, which damping draws back to.
  Moments<T> fit(const Divisors<T>& divisors, Vec<T> mass, Vec<T> sum, Vec<T> squares, Vec<T> origin, Vec<T> old) const {
    const Vec<T> zero{}, one = zero + T(1);
    if (is(Options::vb)) {
      // the prior counts as kappa0 more votes for 0
      const Vec<T> mean = (sum + mass * origin) * divisors.of_mean, move = mean - origin;
      const Vec<T> scatter = max(squares - move * (sum + sum - mass * move), zero);
      const Vec<T> scale = T(options_.prior_psi) + T(options_.prior_kappa) * mean * mean + scatter;
      return {mean, scale * divisors.of_variance, mass * move * move > recentre_limit<T> * scale};
    }
    const Vec<T> inverse = divisors.of_mean;
    const Vec<T> share = divisors.starved ? mass * inverse : one;  // sum of r / max(mass, least)
    const Vec<T> first = sum * inverse;
    Vec<T> move = first - origin * (one - share);
    Vec<T> mean = origin + move;
    if (options_.damping > 0) {
      mean = T(1 - options_.damping) * mean + T(options_.damping) * old;
      move = mean - origin;
    }
    const Vec<T> spread = squares * inverse - move * (first + first - move * share);
    const Vec<T> variance = max(spread, zero) + T(options_.variance_epsilon);
    return {mean, variance, (move * move > recentre_limit<T> * variance) & ~divisors.starved};
  }

  // Fills totals[vectors]: ln of the mass of all parents (mixing), psi of the sum of alpha over those that share one
  // vector of mixing weights (vb). `mass_of(window, v)` tells the masses of an example.
  template <class MassOf>
  void total(int64_t example, int64_t window, MassOf&& mass_of, Vec<T>* totals) const {
    if (is(Options::mixing)) {
      sum_sharing(example, window, mass_of, totals);
      const T log_total = std::log(std::max(totals[0][0], T(smallest_mass)));
      std::fill_n(totals, layout_.vectors, broadcast<T>(log_total));
    } else if (is(Options::vb)) {
      sum_alpha(example, window, mass_of, totals);
      for (int v = 0; v < layout_.vectors; v++) totals[v] = Digamma<T>(totals[v]).value;
    }
  }

  // The sums of alpha over those that share one vector of mixing weights, at least that of one parent.
  template <class MassOf>
  void sum_alpha(int64_t example, int64_t window, MassOf&& mass_of, Vec<T>* sums) const {
    const T alpha = T(options_.prior_alpha);
    sum_sharing(example, window, [&](int64_t other, int v) { return mass_of(other, v) + alpha; }, sums);
    for (int v = 0; v < layout_.vectors; v++) sums[v] = max(sums[v], broadcast<T>(alpha));
  }

  // Fills sums[vectors] with the sums of value(window, v) over the parents that share mixing weights with those of
  // `window`: those of the window, all of the example, or those of the same type. Positions that do not exist have no
  // weights; only what arrives there counts (`everywhere`), as their logits follow from the weights of the others.
  template <class Value>
  void sum_sharing(int64_t example, int64_t window, Value&& value, Vec<T>* sums, bool everywhere = false) const {
    const int64_t first = alone_ ? window : 0, last = alone_ ? window + 1 : votes_.windows;
    Vec<T> all{};
    if (by_type_) std::fill_n(sums, layout_.vectors, Vec<T>{});
    for (int64_t other = first; other < last; other++) {
      if (!everywhere && !votes_.window_exists(example, other)) continue;
      for (int v = 0; v < layout_.vectors; v++) (by_type_ ? sums[v] : all) += real_lanes(value(other, v), v);
    }
    if (!by_type_) std::fill_n(sums, layout_.vectors, broadcast<T>(sum_lanes<T>(all)));
  }

  // Logit and log weight of a record whose moments are known; for heinsen its logit holds what the children are worth.
  void conclude(const Record<T>& record, int v, int64_t example, int64_t window, int64_t t, Vec<T> total) const {
    const Vec<T> mass = record.mass();
    switch (kind) {
      case Options::mixing:
        record.logit() = record.log_weight() = log(max(mass, mass * T(0) + T(smallest_mass))) - total;
        return;
      case Options::mass:
        record.logit() = mass;
        record.log_weight() = Vec<T>{};
        return;
      case Options::vb: return conclude_vb(record, v, total);
      case Options::heinsen:
        record.logit() += of_parents(options_.threshold + (example * votes_.windows + window) * votes_.parents, v);
        break;
      default: record.logit() = cost_logit(record, v, example, t);
    }
    record.log_weight() = log_sigmoid<T>(record.logit());
  }

  Vec<T> activation(const Record<T>& record) const {
    if (is(Options::mixing)) return exp(record.logit());
    return is(Options::mass) ? record.mass() : sigmoid<T>(record.logit());
  }

  // 1/2 sum over entries of log variance.
  Vec<T> half_log_variance(const Record<T>& record) const {
    return T(0.5) * sum_of_logs<T>(record.variance(), layout_.size);
  }

  // A register of numbers, one per parent; 0 in padding lanes.
  Vec<T> of_parents(const T* values, int v) const {
    Vec<T> x{};
    for (int lane = 0; lane < Simd<T>::width && v * Simd<T>::width + lane < votes_.parents; lane++)
      x[lane] = values[v * Simd<T>::width + lane];
    return x;
  }

  // 0 in padding lanes: the uniform first coupling puts mass into them as well.
  Vec<T> real_lanes(Vec<T> x, int v) const {
    for (int lane = 0; lane < Simd<T>::width; lane++)
      if (v * Simd<T>::width + lane >= votes_.parents) x[lane] = 0;
    return x;
  }

 private:
  Vec<T> cost_logit(const Record<T>& record, int v, int64_t example, int64_t t) const {
    const Vec<T> half = half_log_variance(record), beta_a = of_parents(options_.beta_a, v);
    const Vec<T> beta_u = of_parents(options_.beta_u, v);
    const T sharpness = T(options_.sharpness[t]);
    if (is(Options::entropy)) return sharpness * (beta_a - beta_u - half);
    const Vec<T> cost = (T(layout_.size) * beta_u + half) * record.mass();
    return sharpness * (beta_a - cost * inverse_mass_[example]);
  }

  // With variance = P / nu: E ln |L| = sum of psi + D ln (2 / nu) - sum of ln variance.
  void conclude_vb(const Record<T>& record, int v, Vec<T> total) const {
    const Vec<T> mass = record.mass(), nu = mass + T(options_.prior_nu), kappa = mass + T(options_.prior_kappa);
    const T size = T(layout_.size);
    Vec<T> psi, slope;
    sum_of_halves<T>(nu, layout_.size, psi, slope);
    const Vec<T> log_share = Digamma<T>(mass + T(options_.prior_alpha)).value - total;
    const Vec<T> half_freedom = T(0.5) * (psi + size * log(T(2) / nu));
    record.log_weight() = log_share + half_freedom - T(0.5) * size / kappa;
    const Vec<T> entropy = T(0.5 * layout_.size * (std::log(2 * M_PI) + 1)) - half_freedom + half_log_variance(record);
    record.logit() = of_parents(options_.beta_a, v) - of_parents(options_.beta_u, v) - exp(log_share) * entropy;
  }

  const Votes<T>& votes_;
  const Options& options_;
  const Layout<T>& layout_;
  const T* const inverse_mass_;
  const bool alone_, by_type_;
};

}  // namespace em
}  // namespace torchcaps
