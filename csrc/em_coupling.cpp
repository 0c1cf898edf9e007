// Couplings of any iteration of EM routing, from the state that the forward saved.
#include "em_context.h"

namespace torchcaps {
namespace em {
namespace {

template <class T, class Shape>
class Couplings {
 public:
  Couplings(const Votes<T>& votes, const EmOptions<T>& options, int threads, const T* state, int64_t iteration,
            T* coupling, T* likelihood)
      : context_(votes, options, threads),
        votes_(votes),
        layout_(context_.layout),
        state_(state),
        iteration_(iteration),
        coupling_(coupling),
        likelihood_(likelihood),
        workers_(context_.threads) {
    for (Worker& worker : workers_) {
      const int64_t registers = Gaussians<T>::registers(layout_) * votes.windows;
      worker.gaussians = context_.frame.template take<Vec<T>>(registers);
      worker.records = context_.frame.template take<Vec<T>>(layout_.vectors * record_registers(layout_));
      worker.bench.take(context_.frame, layout_, context_.plan.most_sights, context_.most_competing);
    }
  }

  void run() {
    Crew::work(context_.threads, [this](Crew& crew) {
      context_.prepare(crew);
      crew.run(votes_.examples, [this](int64_t example, int worker) { write_example(workers_[worker], example); });
    });
  }

 private:
  struct Worker {
    Vec<T>* gaussians;
    Vec<T>* records;
    Bench<T> bench;
  };

  void write_example(Worker& self, int64_t example) const {
    const int64_t size = votes_.windows * votes_.slots * votes_.parents;
    if (coupling_) std::fill(coupling_ + example * size, coupling_ + (example + 1) * size, T(0));
    for (int64_t window = 0; iteration_ > 0 && window < votes_.windows; window++) {
      const int64_t at = record_place(layout_, example, iteration_ - 1, context_.options.iterations, window);
      const int64_t registers = layout_.vectors * record_registers(layout_);
      std::memcpy(self.records, state_ + at * Simd<T>::width, registers * sizeof(Vec<T>));
      const Gaussians<T> gaussians(self.gaussians + window * Gaussians<T>::registers(layout_), layout_);
      prepare_gaussians(votes_, layout_, self.records, gaussians);
    }
    T likelihood = 0;
    for (const Unit& unit : context_.plan.units) likelihood += write_unit(self, unit, example);
    if (likelihood_) likelihood_[example] = likelihood;
  }

  // Returns the share of the unit's children in the log-likelihood.
  T write_unit(Worker& self, const Unit& unit, int64_t example) const {
    Bench<T>& bench = self.bench;
    const int num_sights = context_.look(unit, example, bench);
    const int64_t logs = context_.position ? votes_.parents : 1;  // that one E-step adds up
    const bool is_density = context_.options.mapping != EmOptions<T>::vb;  // else an expected log-density, without pi
    const T normaliser = is_density ? T(0.5 * layout_.size * std::log(2 * M_PI)) * T(logs) : T(0);
    T likelihood = 0;
    for (int m = 0; m < unit.count; m++) {
      if (!bench.children[m].votes) continue;
      context_.for_competitions(num_sights, [&](int start, int count) {
        T log_total = 0;
        if (iteration_ > 0)
          context_.template e_step<1>(bench, self.gaussians, iteration_ - 1, bench.sights + start, count, m, false,
                                      &log_total);
        else
          context_.template first_step<1>(bench, example, bench.sights + start, count, m, num_sights);
        if (iteration_ > 0) {
          const T sharp = T(context_.options.inverse_temperature[iteration_ - 1]);
          likelihood += bench.children[m].activation * (log_total / sharp - normaliser);
        }
        for (int k = 0; coupling_ && k < count; k++) {
          const Sight& sight = bench.sights[start + k];
          unpack_parents<T>(bench.coupling + k * layout_.vectors, votes_.parents, 1, layout_.vectors,
                            coupling_ + context_.coupling_at(example, sight, m));
        }
      });
    }
    return likelihood;
  }

  Context<T, Shape> context_;
  const Votes<T>& votes_;
  const Layout<T>& layout_;
  const T* state_;
  const int64_t iteration_;
  T *coupling_, *likelihood_;
  std::vector<Worker> workers_;
};

template <class T>
int couplings(const Votes<T>* votes, const EmOptions<T>* options, const T* state, int64_t iteration, T* coupling,
              T* likelihood, int threads) {
  return guarded([&] {
    check(*votes, *options);
    require(state && iteration >= 0 && iteration <= options->iterations);
    with_shape(*votes, [&](auto shape) {
      using Shape = std::remove_pointer_t<decltype(shape)>;
      Couplings<T, Shape>(*votes, *options, threads, state, iteration, coupling, likelihood).run();
    });
  });
}

}  // namespace
}  // namespace em
}  // namespace torchcaps

// Couplings R (B, S, N, J) that iteration `iteration` of the M-step used, 0 where there is no vote; `iteration` may
// be T: those an E-step after the last M-step would give. Either result may be null. `likelihood` (B) is the sum
// over children of a_i / T log sum_j (a_j p_ij)^T under the Gaussians and the inverse temperature T of iteration - 1
// (0 for iteration 0), j the parents that compete; under position competition one log for each type. For vb rho_ij takes
// the place of a_j p_ij.
TORCHCAPS_EXPORT int torchcaps_em_coupling_f32(const torchcaps::Votes<float>* votes,
                                               const torchcaps::EmOptions<float>* options, const float* state,
                                               int64_t iteration, float* coupling, float* likelihood, int threads) {
  return torchcaps::em::couplings(votes, options, state, iteration, coupling, likelihood, threads);
}

TORCHCAPS_EXPORT int torchcaps_em_coupling_f64(const torchcaps::Votes<double>* votes,
                                               const torchcaps::EmOptions<double>* options, const double* state,
                                               int64_t iteration, double* coupling, double* likelihood,
                                               int threads) {
  return torchcaps::em::couplings(votes, options, state, iteration, coupling, likelihood, threads);
}
