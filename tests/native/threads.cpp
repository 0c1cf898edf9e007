// Every entry point of the kernels from several caller threads at once, each with several workers, while another
// thread releases scratch memory. Built with ThreadSanitizer by test_threads.py, and for other processors by
// tools/kernel_tests.py.
//
//     threads              results must be, bit for bit, those of a caller that is alone; exit code 1 if not
//     threads shared       plants a race: all callers write their results into the same memory
//     threads alone        no second caller; any number of workers must give the same bits, fewer than asked for as well
//     threads write FILE   writes all results, to be compared with those of another processor
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/em.h"
#include "../../csrc/softmax_options.h"
#include "../../csrc/votes.h"

using namespace torchcaps;

template <class T>
struct Entries;

#define DECLARE_ENTRIES(T, ending)                                                                                  \
  extern "C" {                                                                                                      \
  int torchcaps_softmax_forward_##ending(const Votes<T>*, const SoftmaxOptions*, const T*, T*, T*, T*, int);        \
  int torchcaps_softmax_couplings_##ending(const Votes<T>*, const SoftmaxOptions*, const T*, const T*, const T*,    \
                                           int64_t, T*, int);                                                       \
  int torchcaps_softmax_backward_##ending(const Votes<T>*, const SoftmaxOptions*, const T*, const T*, const T*,     \
                                          const T*, T*, T*, T*, T*, T*, T*, int);                                   \
  int torchcaps_em_forward_##ending(const Votes<T>*, const EmOptions<T>*, T*, T*, T*, T*, int);                     \
  int torchcaps_em_coupling_##ending(const Votes<T>*, const EmOptions<T>*, const T*, int64_t, T*, T*, int);         \
  int torchcaps_em_backward_##ending(const Votes<T>*, const EmOptions<T>*, const T*, const T*, const T*, const T*,  \
                                     T*, T*, T*, T*, T*, T*, T*, T*, T*, int);                                      \
  }                                                                                                                 \
  template <>                                                                                                       \
  struct Entries<T> {                                                                                               \
    static constexpr auto softmax_forward = torchcaps_softmax_forward_##ending;                                     \
    static constexpr auto softmax_couplings = torchcaps_softmax_couplings_##ending;                                 \
    static constexpr auto softmax_backward = torchcaps_softmax_backward_##ending;                                   \
    static constexpr auto em_forward = torchcaps_em_forward_##ending;                                               \
    static constexpr auto em_coupling = torchcaps_em_coupling_##ending;                                             \
    static constexpr auto em_backward = torchcaps_em_backward_##ending;                                             \
  };

DECLARE_ENTRIES(float, f32)
DECLARE_ENTRIES(double, f64)
extern "C" int torchcaps_release_scratch();

struct Sizes {
  const char* name;
  int64_t examples, windows, slots, children, parents, transforms, rows, inner, outer;
  bool bias, masks;
};

// One way through the kernels each; see softmax_plan.h, softmax_few.h and softmax_shared.h.
const Sizes all_sizes[] = {
    {"few samples", 2, 1, 40, 40, 5, 40, 1, 4, 16, true, false},
    {"slots split, own weights", 20, 1, 48, 48, 3, 48, 1, 3, 7, true, true},
    {"slots split, common weights", 3, 2, 9, 13, 5, 3, 1, 4, 4, true, true},
    {"samples split", 40, 8, 6, 13, 3, 6, 1, 3, 5, true, true},
    {"shared weights", 130, 1, 9, 9, 3, 1, 1, 4, 6, false, true},
    {"matrices", 5, 4, 6, 12, 9, 6, 4, 4, 4, false, true},
};

// What one job finds, part by part.
template <class T>
struct Results {
  std::vector<T> values;
  std::vector<std::size_t> ends;  // of the parts
};

template <class T>
class Problem {
 public:
  explicit Problem(const Sizes& sizes) : random_(7) {
    const int64_t vote = sizes.rows * sizes.outer, pose = sizes.rows * sizes.inner;
    poses_ = normal(sizes.examples * sizes.children * pose);
    weight_ = normal(sizes.transforms * sizes.parents * sizes.inner * sizes.outer);
    bias_ = normal(sizes.transforms * sizes.parents * vote);
    betas_ = normal(2 * sizes.parents);
    activations_ = normal(sizes.examples * sizes.children);
    for (T& x : activations_) x = T(1) / (T(1) + x * x);
    grad_poses_ = normal(sizes.examples * sizes.windows * sizes.parents * vote);
    grad_activations_ = normal(sizes.examples * sizes.windows * sizes.parents);
    for (int64_t s = 0; s < sizes.windows; s++)  // neighbours share children
      for (int64_t n = 0; n < sizes.slots; n++) child_.push_back(int32_t((2 * s + n) % sizes.children));
    for (int64_t n = 0; n < sizes.slots; n++) transform_.push_back(int32_t(n % sizes.transforms));
    for (int64_t k = 0; k < sizes.examples * sizes.children; k++) child_mask_.push_back(k % 7 != 3);
    for (int64_t k = 0; k < sizes.examples * sizes.windows; k++) window_mask_.push_back(k % 5 != 4);
    const bool dense = sizes.windows == 1;
    votes = {sizes.examples, sizes.windows, sizes.slots, sizes.children, sizes.parents, sizes.transforms,
             sizes.rows, sizes.inner, sizes.outer,
             poses_.data(), activations_.data(), weight_.data(), sizes.bias ? bias_.data() : nullptr, nullptr,
             dense ? nullptr : child_.data(), sizes.transforms == sizes.slots ? nullptr : transform_.data(),
             sizes.masks ? child_mask_.data() : nullptr, sizes.masks ? window_mask_.data() : nullptr};
  }
  Problem(const Problem&) = delete;

  // Routes, differentiates, takes couplings; returns all results one after the other.
  int softmax(int algorithm, int competition, int threads, Results<T>& results) const {
    const double alphas[] = {0.3, 0.2, 0.1};
    const SoftmaxOptions options{algorithm, 3, 0, 0, 1, competition, 0, 1.0, 1.0, 1e-5, alphas, nullptr, nullptr};
    const int64_t samples = votes.examples * votes.windows, parents = samples * votes.parents;
    Cutter cut{results};
    T* const out = cut(parents * votes.vote_size());
    T* const sums = cut(3 * parents * votes.vote_size());
    T* const masses = algorithm == kmeans_euclidean ? cut(3 * parents) : nullptr;
    T* const coupling = cut(samples * votes.slots * votes.parents);
    T* const poses = cut(poses_.size());
    T* const weight = cut(weight_.size());
    T* const bias = votes.bias ? cut(bias_.size()) : nullptr;
    T* const activations = cut(activations_.size());
    if (cut.counts()) return 0;
    return Entries<T>::softmax_forward(&votes, &options, nullptr, out, sums, masses, threads) +
           Entries<T>::softmax_couplings(&votes, &options, nullptr, sums, masses, 2, coupling, threads) +
           Entries<T>::softmax_backward(&votes, &options, nullptr, sums, masses, grad_poses_.data(), poses, weight,
                                        bias, activations, nullptr, nullptr, threads);
  }

  int em(int competition, int mapping, int detach, int threads, Results<T>& results) const {
    using Options = EmOptions<T>;
    const double sharpness[] = {0.05, 0.1, 0.15}, inverse_temperature[] = {1, 0.5, 0.25};
    const bool has_betas = mapping == Options::mdl || mapping == Options::entropy || mapping == Options::vb;
    const bool has_worth = mapping == Options::heinsen;
    const int64_t windows = votes.examples * votes.windows, parents = windows * votes.parents;
    const std::vector<T> threshold(parents, T(-0.5));
    Options options{};
    options.iterations = mapping == Options::mass ? 1 : 3;
    options.competition = competition;
    options.mapping = mapping;
    options.scale_by_mass = 1;
    options.detach = detach;
    options.worth_types = 1;
    options.variance_epsilon = 0.01;
    options.damping = competition == position_competition && mapping != Options::vb ? 0.1 : 0;
    options.prior_alpha = options.prior_kappa = options.prior_psi = 1;
    options.prior_nu = double(votes.vote_size() + 1);
    options.sharpness = sharpness;
    options.inverse_temperature = inverse_temperature;
    options.beta_a = has_betas ? betas_.data() : nullptr;
    options.beta_u = has_betas ? betas_.data() + votes.parents : nullptr;
    options.worth = has_worth ? betas_.data() : nullptr;
    options.threshold = has_worth ? threshold.data() : nullptr;
    const em::Layout<T> layout(votes);
    Cutter cut{results};
    T* const out = cut(parents * votes.vote_size());
    T* const out_activations = cut(parents);
    T* const out_logits = cut(parents);
    T* const state =
        cut(em::record_place(layout, votes.examples, 0, options.iterations, 0) * Simd<T>::width);
    T* const coupling = cut(windows * votes.slots * votes.parents);
    T* const likelihood = cut(votes.examples);
    T* const poses = cut(poses_.size());
    T* const activations = cut(activations_.size());
    T* const weight = cut(weight_.size());
    T* const bias = votes.bias ? cut(bias_.size()) : nullptr;
    T* const betas = has_betas ? cut(betas_.size()) : nullptr;
    T* const worth = has_worth ? cut(votes.parents) : nullptr;
    T* const grad_threshold = has_worth ? cut(parents) : nullptr;
    if (cut.counts()) return 0;
    return Entries<T>::em_forward(&votes, &options, out, out_activations, out_logits, state, threads) +
           Entries<T>::em_coupling(&votes, &options, state, options.iterations, coupling, likelihood, threads) +
           Entries<T>::em_backward(&votes, &options, state, grad_poses_.data(), grad_activations_.data(), nullptr,
                                   poses, activations, weight, bias, betas, has_betas ? betas + votes.parents : nullptr,
                                   worth, grad_threshold, nullptr, threads);
  }

  Votes<T> votes;

 private:
  // Hands out the parts of results; those that are empty are only measured, and then have their size.
  struct Cutter {
    Results<T>& results;
    const bool measuring = results.values.empty();
    std::size_t used = 0;
    T* operator()(std::size_t count) {
      used += count;
      if (measuring) results.ends.push_back(used);
      return measuring ? nullptr : results.values.data() + used - count;
    }
    bool counts() {
      if (measuring) results.values.resize(used);
      return measuring;
    }
  };

  std::vector<T> normal(std::size_t count) {
    std::normal_distribution<double> draw;
    std::vector<T> values(count);
    for (T& value : values) value = T(0.5 * draw(random_));
    return values;
  }

  std::mt19937 random_;
  std::vector<T> poses_, weight_, bias_, betas_, activations_, grad_poses_, grad_activations_;
  std::vector<int32_t> child_, transform_;
  std::vector<uint8_t> child_mask_, window_mask_;
};

// One problem, one algorithm, one number of workers.
template <class T>
struct Job {
  std::string name;
  std::function<int(Results<T>&)> run;  // empty results are given their size
};

template <class T>
std::vector<Job<T>> jobs_of(const std::vector<Problem<T>*>& problems) {
  std::vector<Job<T>> jobs;
  for (std::size_t k = 0; k < problems.size(); k++) {
    const Problem<T>* problem = problems[k];
    for (int threads : {1, 2, 4}) {
      const std::string name = std::string(all_sizes[k].name) + ", " + std::to_string(threads) + " workers, ";
      for (int competition : {0, 1, 2}) {
        for (int algorithm : {dynamic_routing, kmeans_dot, kmeans_euclidean, entropy_routing, max_min_routing, attention_routing})
          jobs.push_back(
              {name + "softmax " + std::to_string(competition) + std::to_string(algorithm),
               [=](Results<T>& results) { return problem->softmax(algorithm, competition, threads, results); }});
        for (int mapping : {0, 1, 2, 3, 4, 5})
          for (int detach : {0, 1})
            jobs.push_back(
                {name + "em " + std::to_string(competition) + std::to_string(mapping) + std::to_string(detach),
                 [=](Results<T>& results) { return problem->em(competition, mapping, detach, threads, results); }});
      }
    }
  }
  return jobs;
}

bool failed(const std::string& name, const char* what) {
  std::fprintf(stderr, "%s: %s\n", name.c_str(), what);
  return true;
}

template <class T>
Results<T> results_of(const Job<T>& job) {
  Results<T> results;
  job.run(results);
  if (job.run(results)) std::exit(failed(job.name, "refused"));
  return results;
}

// Whether any result of several callers at once differs from that of one alone.
template <class T>
bool differs_among_callers(const std::vector<Job<T>>& jobs, bool shared) {
  constexpr int num_callers = 3;
  std::atomic<bool> done{false}, wrong{false};
  std::vector<Results<T>> expected;
  for (const Job<T>& job : jobs) expected.push_back(results_of(job));
  std::vector<Results<T>> common = expected;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < num_callers; caller++)
    callers.emplace_back([&, caller] {
      for (std::size_t k = 0; k < jobs.size(); k++) {
        // callers that share their results meet in the same job; the others are spread
        const std::size_t at = shared ? k : (k + caller * jobs.size() / num_callers) % jobs.size();
        Results<T> own{std::vector<T>(shared ? 0 : expected[at].values.size()), {}};
        Results<T>& results = shared ? common[at] : own;
        if (jobs[at].run(results)) wrong = failed(jobs[at].name, "refused");
        const std::size_t bytes = results.values.size() * sizeof(T);
        if (!shared && std::memcmp(results.values.data(), expected[at].values.data(), bytes))
          wrong = failed(jobs[at].name, "not the results of a caller that is alone");
      }
    });
  std::thread releaser([&] {
    while (!done) {
      torchcaps_release_scratch();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& caller : callers) caller.join();
  done = true;
  releaser.join();
  return wrong;
}

// Whether results depend on how many workers there are.
template <class T>
bool differs_among_workers(const std::vector<Job<T>>& jobs) {
  bool wrong = false;
  const std::size_t per_threads = jobs.size() / (3 * std::size(all_sizes));
  for (std::size_t k = 0; k < jobs.size(); k++) {
    const std::size_t first = k / (3 * per_threads) * 3 * per_threads + k % per_threads;
    const std::vector<T> expected = results_of(jobs[first]).values, found = results_of(jobs[k]).values;
    if (std::memcmp(expected.data(), found.data(), found.size() * sizeof(T)))
      wrong = failed(jobs[k].name, "not the results of one worker");
  }
  return wrong;
}

// For each part of each job a line with the type, the job and the number of entries, and these as doubles.
template <class T>
bool write_results(const std::vector<Job<T>>& jobs, std::FILE* file) {
  for (const Job<T>& job : jobs) {
    const Results<T> results = results_of(job);
    for (std::size_t part = 0, start = 0; part < results.ends.size(); start = results.ends[part++]) {
      const std::vector<double> values(results.values.begin() + start, results.values.begin() + results.ends[part]);
      std::fprintf(file, "f%d|%s|%zu\n", int(8 * sizeof(T)), job.name.c_str(), values.size());
      std::fwrite(values.data(), sizeof(double), values.size(), file);
    }
  }
  return std::ferror(file);
}

template <class T>
bool check_type(const std::string& mode, std::FILE* file) {
  std::vector<Problem<T>*> problems;
  for (const Sizes& sizes : all_sizes) problems.push_back(new Problem<T>(sizes));
  const std::vector<Job<T>> jobs = jobs_of<T>(problems);
  const bool wrong = mode == "write"   ? write_results(jobs, file)
                     : mode == "alone" ? differs_among_workers(jobs)
                                       : differs_among_callers(jobs, mode == "shared");
  for (Problem<T>* problem : problems) delete problem;
  return wrong;
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  std::FILE* const file = argc > 2 ? std::fopen(argv[2], "wb") : nullptr;
  if (mode == "write" && !file) return failed("threads write", "no file to write to");
  bool wrong = check_type<float>(mode, file) | check_type<double>(mode, file);
  if (file) wrong |= std::fclose(file) != 0;
  if (!wrong) std::puts("every result is right");
  return wrong;
}
