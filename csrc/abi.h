// What every C entry point shares: visibility, status codes, and the wall that no exception passes.
#pragma once
#include <new>
#include <stdexcept>

#define TORCHCAPS_EXPORT extern "C" __attribute__((visibility("default")))

namespace torchcaps {

// Raised with every change of an entry point or of a struct that Python fills: the loader compares it with its own,
// and a library from another source tree is never called.
constexpr int abi_version = 7;

enum Status : int { ok = 0, out_of_memory = 1, bad_argument = 2 };

struct BadArgument : std::exception {};

inline void require(bool condition) {
  if (!condition) throw BadArgument();
}

// Runs `body` and turns what it throws into a status. Code inside an OpenMP region must not throw: take
// scratch memory and check arguments before the region starts.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return ok;
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  } catch (...) {
    return bad_argument;
  }
}

}  // namespace torchcaps
