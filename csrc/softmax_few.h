// Forward pass of the softmax routings for a handful of samples (single-image inference).
//
// With samples in the lanes most lanes would be empty, so here the lanes are entries of a vote, and the votes are
// formed once and kept: for a few samples they are small, and reading the weights is what costs.
#pragma once
#include "softmax_plan.h"

namespace torchcaps {

template <class T>
class SoftmaxFew {
  using Plan = SoftmaxPlan<T, 1>;
  static constexpr int width = Simd<T>::width;

 public:
  static constexpr int64_t most_samples = 4;
  static constexpr int64_t most_bytes = int64_t(128) << 20;  // of votes

  static bool takes(const Votes<T>& votes) {
    const int64_t samples = votes.examples * votes.windows;
    const int64_t bytes = samples * votes.slots * votes.parents * votes.vote_size() * int64_t(sizeof(T));
    return samples <= most_samples && bytes <= most_bytes;
  }

  explicit SoftmaxFew(const Plan& plan)
      : plan_(plan), update_(plan.options, plan.shape.parents, plan.shape.vote_size(), 1), size_(plan.shape.votes_size()) {}

  // As SoftmaxForward::run.
  void run(T* out, T* sums, T* masses) {
    Arena::Frame frame;
    votes_ = frame.take<T>(plan_.samples * plan_.votes.slots * size_);
    factors_ = frame.take<T>(plan_.samples * plan_.votes.slots);
    queries_ = frame.zeros<T>(plan_.samples * size_);
    const int64_t blocks = (plan_.votes.slots + width - 1) / width;  // of slots, which take the lanes
    const int64_t entries = plan_.samples * plan_.votes.slots * size_;
    pieces_ = std::min(blocks, pieces_for(entries, plan_.samples * size_ * int64_t(sizeof(T))));
    partial_sums_ = frame.take<T>(pieces_ * plan_.samples * size_);
    partial_masses_ = frame.take<T>(pieces_ * plan_.samples * plan_.shape.parents);
    T* const couplings = frame.take<T>(plan_.threads * plan_.shape.parents * width);
    T* const bases = frame.zeros<T>(plan_.threads * size_);
    Crew::work(plan_.threads, [&](Crew& crew) {
      const Hands hands{&crew, 0, pieces_};
      for (int64_t t = 0; t < plan_.options.iterations; t++) {
        hands.share(blocks, [&](int64_t piece, int who, const Range& own) {
          std::fill_n(partial_sum(piece, 0), plan_.samples * size_, T(0));
          std::fill_n(partial_mass(piece, 0), plan_.samples * plan_.shape.parents, T(0));
          const Range slots{own.first * width, std::min(own.last * width, plan_.votes.slots)};
          if (t == 0)
            for (int64_t n = slots.first; n < slots.last; n++) form_votes(piece, n, bases + who * size_);
          else
            for (int64_t n = slots.first; n < slots.last; n += width)
              route(piece, {n, std::min(slots.last, n + width)}, couplings + who * plan_.shape.parents * width);
        });
        hands.share(plan_.samples, [&](int64_t, int, const Range& own) {
          for (int64_t sample = own.first; sample < own.last; sample++) finish_iteration(sample, t, out, sums, masses);
        });
      }
    });
  }

 private:
  T* votes_of(int64_t sample, int64_t slot) const { return votes_ + (sample * plan_.votes.slots + slot) * size_; }
  T* partial_sum(int64_t piece, int64_t sample) const { return partial_sums_ + (piece * plan_.samples + sample) * size_; }
  T* partial_mass(int64_t piece, int64_t sample) const {
    return partial_masses_ + (piece * plan_.samples + sample) * plan_.shape.parents;
  }

  // Votes of one slot for all samples, added to the sums of the first iteration at once.
  void form_votes(int64_t piece, int64_t slot, T* base) {
    const VoteShape& shape = plan_.shape;
    if (plan_.has_base()) plan_.fill_base(slot, base);
    for (int64_t sample = 0; sample < plan_.samples; sample++) {
      T* const votes = votes_of(sample, slot);
      const int64_t from = plan_.voter(sample, slot);
      const T factor = from < 0 ? T(0) : plan_.options.amend ? plan_.votes.activations[from] : T(1);
      factors_[sample * plan_.votes.slots + slot] = factor;
      std::copy_n(base, size_, votes);
      if (from < 0) continue;
      const T* const pose = plan_.votes.poses + from * shape.pose_size();
      for (int64_t j = 0; j < shape.parents; j++)
        for (int64_t row = 0; row < shape.rows; row++)
          add_product(pose + row * shape.inner, plan_.weight_of(slot) + j * shape.inner * shape.outer,
                      votes + (j * shape.rows + row) * shape.outer);
      T* const sum = partial_sum(piece, sample);
      for (int64_t i = 0; i < size_; i++) sum[i] += factor * votes[i];
      partial_mass(piece, sample)[0] += factor;
    }
  }

  // row_e += sum over k of pose_k weight_ke.
  void add_product(const T* pose, const T* weight, T* row) const {
    const int64_t inner = plan_.shape.inner, outer = plan_.shape.outer;
    int64_t e = 0;
    for (; e + 2 * width <= outer; e += 2 * width) {
      Vec<T> a = load(row + e), b = load(row + e + width);
      for (int64_t k = 0; k < inner; k++) {
        a += load(weight + k * outer + e) * pose[k];
        b += load(weight + k * outer + e + width) * pose[k];
      }
      store(row + e, a);
      store(row + e + width, b);
    }
    for (; e + width <= outer; e += width) {
      Vec<T> a = load(row + e);
      for (int64_t k = 0; k < inner; k++) a += load(weight + k * outer + e) * pose[k];
      store(row + e, a);
    }
    for (; e < outer; e++)
      for (int64_t k = 0; k < inner; k++) row[e] += pose[k] * weight[k * outer + e];
  }

  // Couplings of up to `width` slots, which take the lanes, and their share of the sums.
  void route(int64_t piece, const Range& slots, T* couplings) {
    const int64_t parents = plan_.shape.parents, size = plan_.shape.vote_size();
    for (int64_t sample = 0; sample < plan_.samples; sample++) {
      const T* const query = queries_ + sample * size_;
      std::fill_n(couplings, parents * width, T(0));
      for (int64_t n = slots.first; n < slots.last; n++)
        for (int64_t j = 0; j < parents; j++)
          couplings[j * width + n - slots.first] = agreement(votes_of(sample, n) + j * size, query + j * size);
      plan_.competition.template softmax<1>(couplings, plan_.logit_scale);
      T* const sum = partial_sum(piece, sample);
      T* const mass = partial_mass(piece, sample);
      for (int64_t n = slots.first; n < slots.last; n++)
        for (int64_t j = 0; j < parents; j++) {
          const T c = couplings[j * width + n - slots.first] * factors_[sample * plan_.votes.slots + n];
          const T* const vote = votes_of(sample, n) + j * size;
          for (int64_t d = 0; d < size; d++) sum[j * size + d] += c * vote[d];
          mass[j] += c;
        }
    }
  }

  // <vote, query>, or |vote - query|^2.
  T agreement(const T* vote, const T* query) const {
    const bool euclidean = update_.uses_mass();
    const int64_t size = plan_.shape.vote_size();
    Vec<T> lanes = {};
    int64_t d = 0;
    for (; d + width <= size; d += width) {
      const Vec<T> v = load(vote + d), q = load(query + d);
      lanes += euclidean ? (v - q) * (v - q) : v * q;
    }
    T total = sum_lanes<T>(lanes);
    for (; d < size; d++) total += euclidean ? (vote[d] - query[d]) * (vote[d] - query[d]) : vote[d] * query[d];
    return total;
  }

  void finish_iteration(int64_t sample, int64_t t, T* out, T* sums, T* masses) {
    const int64_t parents = plan_.shape.parents;
    T* const sum = sums + (t * plan_.samples + sample) * size_;
    T* const mass = partial_mass(0, sample);
    std::copy_n(partial_sum(0, sample), size_, sum);
    for (int64_t piece = 1; piece < pieces_; piece++) {
      for (int64_t i = 0; i < size_; i++) sum[i] += partial_sum(piece, sample)[i];
      for (int64_t j = 0; j < parents; j++) mass[j] += partial_mass(piece, sample)[j];
    }
    if (t == 0) apply_uniform_share(sum, mass);
    if (update_.uses_mass()) std::copy_n(mass, parents, masses + (t * plan_.samples + sample) * parents);
    if (t + 1 < plan_.options.iterations)
      update_.next_query(t, sum, mass, queries_ + sample * size_);
    else
      update_.output(sum, mass, out + sample * size_);
  }

  // The first iteration collected plain sums, and its mass for parent 0 only.
  void apply_uniform_share(T* sum, T* mass) const {
    const int64_t size = plan_.shape.vote_size();
    for (int64_t j = plan_.shape.parents - 1; j >= 0; j--) {
      const T share = plan_.competition.uniform_share(j);
      for (int64_t d = j * size; d < (j + 1) * size; d++) sum[d] *= share;
      mass[j] = mass[0] * share;
    }
  }

  const Plan& plan_;
  const SoftmaxUpdate<T> update_;  // one sample at a time
  const int64_t size_;             // votes of one slot
  int64_t pieces_ = 1;
  T *votes_ = nullptr, *factors_ = nullptr, *queries_ = nullptr, *partial_sums_ = nullptr, *partial_masses_ = nullptr;
};

}  // namespace torchcaps
