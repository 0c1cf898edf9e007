// A small OpenMP runtime that ThreadSanitizer sees through: that of GNU synchronises in ways it does not know, and
// every barrier would be reported as a race. It has what the kernels use: parallel regions, barriers and single.
//
// TORCHCAPS_PLANT=barrier plants a race: barriers no longer wait. TORCHCAPS_PLANT=fewer starts at most two threads
// whatever was asked for, as OpenMP may.
#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Team {
  explicit Team(int threads) : size(threads) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  long rounds = 0;  // barriers passed
  long taken = 0;   // single blocks that a thread has taken
};

struct Member {
  Team* team = nullptr;
  int rank = 0;
  long singles = 0;  // single blocks met
};

thread_local Member self;

bool planted(const char* what) {
  const char* plant = std::getenv("TORCHCAPS_PLANT");
  return plant && !std::strcmp(plant, what);
}

}  // namespace

extern "C" {

int omp_get_thread_num() { return self.rank; }
int omp_get_num_threads() { return self.team ? self.team->size : 1; }

void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned) {
  static const bool fewer = planted("fewer");
  Team team(fewer ? std::min(int(num_threads), 2) : int(num_threads));
  const Member outer = self;
  const auto work = [&](int rank) {
    self = {&team, rank};
    body(data);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < team.size; rank++) others.emplace_back(work, rank);
  work(0);
  for (std::thread& other : others) other.join();
  self = outer;
}

void GOMP_barrier() {
  static const bool broken = planted("barrier");
  if (!self.team || broken) return;
  Team& team = *self.team;
  std::unique_lock<std::mutex> lock(team.mutex);
  const long round = team.rounds;
  if (++team.arrived == team.size) {
    team.arrived = 0;
    team.rounds++;
    team.changed.notify_all();
  } else {
    team.changed.wait(lock, [&] { return team.rounds != round; });
  }
}

// Whether this thread is the first to come to the single block.
bool GOMP_single_start() {
  if (!self.team) return true;
  std::lock_guard<std::mutex> lock(self.team->mutex);
  const bool first = self.singles == self.team->taken;
  if (first) self.team->taken++;
  self.singles++;
  return first;
}
}
