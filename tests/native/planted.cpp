// Blocks of one crew that write to the same memory, which ThreadSanitizer has to find; `planted apart` gives each its own.
#include <chrono>
#include <cstdio>
#include <thread>

#include "../../csrc/crew.h"

int main(int argc, char**) {
  using namespace torchcaps;
  constexpr int blocks = 64;
  const bool apart = argc > 1;
  long places[blocks] = {}, total = 0;
  for (int call = 0; call < 20; call++)
    Crew::work(2, [&](Crew& crew) {
      for (int pass = 0; pass < 5; pass++) {
        crew.run(blocks, [&](int64_t block, int) {
          places[apart ? block : 0]++;
          std::this_thread::sleep_for(std::chrono::microseconds(20));  // or one thread does it all
        });
        for (long place : places) total += place;  // nobody writes any more
      }
    });
  std::printf("%ld\n", total);
}
