// The backward pass of the EM family, child by child: what passes over the votes do for one unit of children.
#pragma once
#include "em_backward_call.h"

namespace torchcaps {
namespace em {

template <class T, class Shape>
class BackwardChildren {
  using Tile = BackwardTile<T>;
  using Worker = BackwardWorker<T, Shape>;

 public:
  explicit BackwardChildren(const BackwardCall<T, Shape>& call) : call_(call) {}

  // Couplings of iteration t and the gradients of their logits, for one unit.
  void visit_unit(const Unit& unit, int64_t example, const Tile& tile, Worker& self, Vec<T>* all_sums, int64_t base,
                  int64_t t) {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    const Vec<T>* gaussians = tile.gaussians + base * Gaussians<T>::registers(layout_);
    T* grad_activations = call_.gradients.activations + example * votes_.children + unit.child;
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
          differentiate<Block>(self, k, offset, t, tile.coefficients + slot * call_.coefficients());
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
      call_.gradients.activations[child + m] += coupling * sums[m];
      write_pose(self, m, call_.gradients.poses + (child + m) * pose_size);
    }
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
          if (bench.children[offset + m].votes) call_.gradients.activations[child + offset + m] += totals[m];
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
        write_pose(self, m, call_.gradients.poses + (child + m) * pose_size);
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
          call_.gradients.activations[child + offset + m] += totals[m];
          for (int k = 0; k < count; k++)
            spend(self, sights[k].slot + offset + m,
                                 bench.delta + (k * Block + m) * entries(), bench.children[offset + m].pose,
                                 offset + m);
        }
      });
    });
    for (int m = 0; m < unit.count; m++)
      if (bench.children[m].votes)
        write_pose(self, m, call_.gradients.poses + (child + m) * pose_size);
  }

 private:
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
      Vec<T>* target = coefficients + m * call_.coefficients() + 2 * t - 2;
      for (int v = 0; v < vectors(); v++, target += call_.terms - 1) {
        const Vec<T> weight = coupling[v] * activation;
        target[0] = weight;
        target[1] = response[v] = sharp * weight * (response[v] - mean[v]);
      }
    }
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
      if (call_.gradients.logits && child.votes)
        unpack_parents<T>(response, votes_.parents, 1, vectors(),
                          call_.gradients.logits + context_.coupling_at(example, sight, offset + m));
    }
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
      coefficients[m] = tile.coefficients + (w * votes_.slots + sight.slot + offset + m) * call_.coefficients();
    with_terms(call_.terms, [&](auto terms) {
      vote_gradients<Block, decltype(terms)::value, T>(tile.lines + w * 2 * call_.terms * entries(), coefficients,
                                                       first, call_.terms, vectors(), size(), delta, doubled);
    });
  }

  void spend(Worker& self, int64_t slot, const Vec<T>* grad_vote, const T* from_pose, int child) const {
    self.part->collected.spend(context_, slot, grad_vote, from_pose, self.pose + child * votes_.pose_size());
  }

  void write_pose(const Worker& self, int m, T* target) const {
    const int64_t size = votes_.pose_size();
    combine_lanes<T>(self.pose + m * size, int(size), Add(), target);
  }

  int vectors() const { return context_.vectors(); }
  int size() const { return context_.shape.size; }
  int entries() const { return context_.entries(); }

  const BackwardCall<T, Shape>& call_;
  const Context<T, Shape>& context_ = call_.context;
  const Votes<T>& votes_ = context_.votes;
  const EmOptions<T>& options_ = context_.options;
  const Layout<T>& layout_ = context_.layout;
};

}  // namespace em
}  // namespace torchcaps
