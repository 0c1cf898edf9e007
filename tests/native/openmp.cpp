// A small OpenMP runtime that ThreadSanitizer sees through: that of GNU synchronises in ways it does not know, and the end
// of every parallel region would be reported as a race. It has what the kernels use: parallel regions.
//
// TORCHCAPS_PLANT=fewer starts at most two threads whatever was asked for, as OpenMP may.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

struct Member {
  int size = 1, rank = 0;
};

thread_local Member self;

}  // namespace

extern "C" {

int omp_get_thread_num() { return self.rank; }
int omp_get_num_threads() { return self.size; }

void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned) {
  static const char* const plant = std::getenv("TORCHCAPS_PLANT");
  const int size = plant && !std::strcmp(plant, "fewer") ? std::min(int(num_threads), 2) : int(num_threads);
  const Member outer = self;
  const auto work = [&](int rank) {
    self = {size, rank};
    body(data);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; rank++) others.emplace_back(work, rank);
  work(0);
  for (std::thread& other : others) other.join();
  self = outer;
}
}
