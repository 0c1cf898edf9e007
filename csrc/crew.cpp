#include "crew.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>

namespace torchcaps {

// Never freed: helpers sleep in it until the process ends. A child of fork, which has none of them, must not ask for any.
Crew& Crew::common() {
  static Crew* const crew = new Crew;
  return *crew;
}

bool Crew::takes_own() const {
  static const std::string wish = [] {
    const char* value = std::getenv("TORCHCAPS_HELPERS");
    return value ? value : "";
  }();
  return wish == "own" || (wish != "openmp" && Clock::now() < avoids_regions_until_);
}

int Crew::gather(int threads) {
  const int wanted = std::min(threads, most_threads);
  try {
    for (; num_helpers_ < wanted - 1; num_helpers_++) std::thread(&Crew::help, this, num_helpers_ + 1).detach();
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are do the work.
  }
  return std::min(wanted, num_helpers_ + 1);
}

}  // namespace torchcaps
