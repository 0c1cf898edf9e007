// The way back through em_mapping.h: from gradients of weights and activations of parents to those of their sums.
#pragma once
#include "em_mapping.h"

namespace torchcaps {
namespace em {

// What a register of parents gives back.
template <class T>
struct Spent {
  Vec<T> mass;       // the gradient of the mass, but for what variances give
  Vec<T> precision;  // the gradient of a variance gains precision / variance
  Vec<T> logit;      // the gradient of the logit
};

template <class T>
class MappingGradient {
 public:
  using Options = EmOptions<T>;

  MappingGradient(const Mapping<T>& mapping, const Options& options, const Layout<T>& layout, const T* inverse_mass)
      : mapping_(mapping), options_(options), layout_(layout), inverse_mass_(inverse_mass) {}

  // From the gradients of the results of a parent to those that arrive at its log weight and at its logit.
  void receive(const Record<T>& record, Vec<T> activation, Vec<T> logit, Vec<T>& to_log_weight, Vec<T>& to_logit) const {
    to_log_weight = mapping_.is(Options::mass) ? activation : activation * mapping_.activation(record);
    to_logit = logit;
    if (!mapping_.is(Options::vb)) return;
    to_logit += to_log_weight * sigmoid<T>(-record.logit());
    to_log_weight = Vec<T>{};
  }

  // Fills totals[vectors] with what every parent loses through what it shares with others: the total mass (mixing), the
  // sum of alpha (vb). `mass`, `logit`, `log_weight_arrived` and `logit_arrived` tell (window, v) of an example.
  template <class Mass, class Logit, class LogWeightArrived, class LogitArrived>
  void total(int64_t example, int64_t window, Mass&& mass, Logit&& logit, LogWeightArrived&& log_weight_arrived,
             LogitArrived&& logit_arrived, Vec<T>* totals, Vec<T>* shared) const {
    if (mapping_.is(Options::mixing)) {
      const Vec<T> zero{}, one = zero + T(1);
      mapping_.sum_sharing(example, window, mass, shared);
      mapping_.sum_sharing(example, window, log_weight_arrived, totals);
      const auto starved = shared[0] < T(smallest_mass);
      std::fill_n(totals, layout_.vectors, starved ? zero : totals[0] / (starved ? one : shared[0]));
    } else if (mapping_.is(Options::vb)) {
      mapping_.sum_alpha(example, window, mass, shared);
      mapping_.sum_sharing(
          example, window,
          [&](int64_t other, int v) {
            return log_weight_arrived(other, v) + share_arrived(logit(other, v), logit_arrived(other, v), v);
          },
          totals, true);
      for (int v = 0; v < layout_.vectors; v++) totals[v] *= Digamma<T>(shared[v]).slope;
    }
  }

  // Adds to the gradients beta_a, beta_u of a register of parents.
  Spent<T> spend(const Record<T>& record, Vec<T> log_weight, Vec<T> logit, int v, int64_t example, int64_t t, Vec<T> total,
                 Vec<T>& beta_a, Vec<T>& beta_u) const {
    const Vec<T> mass = record.mass(), zero{};
    if (mapping_.is(Options::mass)) return {log_weight, zero, zero};
    if (mapping_.is(Options::vb)) return spend_vb(record, log_weight, logit, v, total, beta_a, beta_u);
    if (mapping_.is(Options::mixing)) {
      const auto starved = mass < T(smallest_mass);
      return {(starved ? zero : log_weight / (starved ? zero + T(1) : mass)) - total, zero, zero};
    }
    const Vec<T> grad_logit = log_weight * sigmoid<T>(-record.logit()) + logit;
    if (mapping_.is(Options::heinsen)) return {zero, zero, mapping_.real_lanes(grad_logit, v)};
    const Vec<T> grad_bracket = T(options_.sharpness[t]) * grad_logit;
    beta_a += grad_bracket;
    if (mapping_.is(Options::entropy)) {
      beta_u -= grad_bracket;
      return {zero, T(-0.5) * grad_bracket, grad_logit};
    }
    const Vec<T> description =  // cost = description * mass
        mapping_.half_log_variance(record) + T(layout_.size) * mapping_.of_parents(options_.beta_u, v);
    const Vec<T> grad_cost = -grad_bracket * inverse_mass_[example];
    beta_u += T(layout_.size) * mass * grad_cost;
    return {grad_cost * description, T(0.5) * grad_cost * mass, grad_logit};
  }

 private:
  // What arrives at E ln pi through the logit beta_a - beta_u - exp(E ln pi) H.
  Vec<T> share_arrived(Vec<T> logit, Vec<T> arrived, int v) const {
    return (logit - mapping_.of_parents(options_.beta_a, v) + mapping_.of_parents(options_.beta_u, v)) * arrived;
  }

  Spent<T> spend_vb(const Record<T>& record, Vec<T> log_weight, Vec<T> logit, int v, Vec<T> total, Vec<T>& beta_a,
                    Vec<T>& beta_u) const {
    const Vec<T> mass = record.mass(), nu = mass + T(options_.prior_nu), kappa = mass + T(options_.prior_kappa);
    const T size = T(layout_.size);
    beta_a += logit;
    beta_u -= logit;
    Vec<T> psi, slope;
    sum_of_halves<T>(nu, layout_.size, psi, slope);
    const Vec<T> log_share =
        record.log_weight() - T(0.5) * (psi + size * log(T(2) / nu)) + T(0.5) * size / kappa;
    const Vec<T> grad_share = log_weight + share_arrived(record.logit(), logit, v);
    const Vec<T> grad_precision = T(0.5) * exp(log_share) * logit;  // of E ln |L|
    const Vec<T> grad_mass = grad_share * Digamma<T>(mass + T(options_.prior_alpha)).slope - total +
                             (T(0.5) * log_weight + grad_precision) * (slope - size / nu) +
                             T(0.5) * size * log_weight / (kappa * kappa);
    return {grad_mass, -grad_precision, logit};
  }

  const Mapping<T>& mapping_;
  const Options& options_;
  const Layout<T>& layout_;
  const T* const inverse_mass_;
};

}  // namespace em
}  // namespace torchcaps
