// The threads that work on one call, and how they wait.
//
// Work is cut into blocks, and the cut depends on the problem alone; threads take blocks as they become free. A thread
// whose core is taken by another process holds up one block and not a share of the work. Sums belong to blocks and are
// added up in their order, so that results are the same bits whatever the number of threads.
//
// One thread, the caller, goes through a call step by step; others help. Whoever waits is awake for a moment and then
// sleeps, since a thread that spins keeps the core from the very thread that it waits for. Helpers come from two places:
//   - the OpenMP runtime that torch uses: its threads are often awake already, but nobody may leave a region before all
//     have come to its end, which takes long where another process has the core of one of them;
//   - threads of our own, which nobody waits for unless they have taken a block, but which have to share a core for some
//     milliseconds with a thread of OpenMP that spins after work for torch.
// The first are taken until one of them came late; then the second, for a while. TORCHCAPS_HELPERS=openmp or own takes
// one kind alone.
#pragma once
#include <omp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>

namespace torchcaps {

class Crew {
  using Clock = std::chrono::steady_clock;

 public:
  // Calls body(crew) on this thread, and lets up to `threads` - 1 others help with what it runs: none while they help
  // another caller. Nothing may throw in it.
  template <class Body>
  static void work(int threads, Body&& body) {
    Crew& crew = common();
    std::unique_lock<std::mutex> mine(crew.busy_, std::defer_lock);
    if (threads <= 1 || !mine.try_lock()) {
      Crew alone;
      return body(alone);
    }
    if (crew.takes_own()) {
      crew.source_ = own;
      crew.size_ = crew.gather(threads);
      return body(crew);
    }
    crew.source_ = region;
    crew.dismissed_ = false;
    crew.gone_ = 0;
#pragma omp parallel num_threads(threads < most_threads ? threads : most_threads)
    {
      const int worker = omp_get_thread_num();
      if (worker > 0) {
        crew.help_in_region(worker);
      } else {
        crew.size_ = omp_get_num_threads();  // may be fewer than asked for
        body(crew);
        crew.dismiss();
      }
    }
  }

  // Calls body(block, worker) for every block, each on the worker that is free; returns when all are done. To be called
  // by the caller alone, who is worker 0.
  template <class Body>
  void run(int64_t blocks, Body&& body) {
    if (size_ == 1 || blocks <= 1 || blocks > mask) {
      for (int64_t block = 0; block < blocks; block++) body(block, 0);
      return;
    }
    using Call = std::remove_reference_t<Body>;
    call_ = [](const void* call, int64_t block, int worker) { (*static_cast<const Call*>(call))(block, worker); };
    body_ = std::addressof(body);
    left_ = blocks;
    tickets_ = (uint64_t(source_) << 9 | uint64_t(size_)) << (2 * bits) | uint64_t(blocks) << bits;
    ring(helpers_[source_]);
    take_blocks(source_, 0);
    wait(caller_, [this] { return left_ == 0; });
  }

 private:
  enum Source { region, own };
  static constexpr int bits = 27;
  static constexpr int64_t mask = (int64_t(1) << bits) - 1;
  static constexpr int most_threads = (1 << 9) - 1;
  static constexpr int rounds_awake = 4000;  // of waiting: some tens of microseconds
  static constexpr std::chrono::microseconds late{300};
  static constexpr std::chrono::milliseconds a_while{1000};

  // Those who sleep until something changes.
  struct Sleepers {
    std::condition_variable bell;
    std::atomic<int> count{0};
  };

  static Crew& common();
  bool takes_own() const;
  // Starts threads of our own until there are enough; returns how many there are, the caller among them.
  int gather(int threads);

  void help(int worker) {
    for (;;) {
      wait(helpers_[own], [=] { return has_blocks(tickets_, own, worker); });
      take_blocks(own, worker);
    }
  }

  void help_in_region(int worker) {
    for (bool stays = true; stays;) {
      wait(helpers_[region], [=] { return has_blocks(tickets_, region, worker) || dismissed_; });
      stays = !dismissed_;
      take_blocks(region, worker);
    }
    gone_++;
    ring(caller_);
  }

  // All come together before the end of the region, where they would wait by spinning.
  void dismiss() {
    const Clock::time_point start = Clock::now();
    dismissed_ = true;
    ring(helpers_[region]);
    wait(caller_, [this] { return gone_ == size_ - 1; });
    const Clock::time_point end = Clock::now();
    if (end - start > late) avoids_regions_until_ = end + a_while;
  }

  // A ticket holds whose helpers are asked, how many threads take part, the number of blocks, and that of the next one
  // that nobody has taken, so that one look tells whether there is something to do, however late a helper is.
  static bool has_blocks(uint64_t ticket, Source source, int worker) {
    const bool is_asked = ticket >> (2 * bits + 9) == uint64_t(source) && worker < int(ticket >> (2 * bits) & most_threads);
    return is_asked && (ticket & mask) < (ticket >> bits & mask);
  }

  void take_blocks(Source source, int worker) {
    uint64_t ticket = tickets_;
    while (has_blocks(ticket, source, worker)) {
      if (!tickets_.compare_exchange_weak(ticket, ticket + 1)) continue;
      call_(body_, int64_t(ticket & mask), worker);
      if (--left_ == 0) ring(caller_);
      ticket = tickets_;
    }
  }

  // Whoever sleeps is counted before it looks a last time, whoever rings changes things before it looks for sleepers.
  template <class Ready>
  void wait(Sleepers& sleepers, Ready&& ready) {
    for (int round = 0; round < rounds_awake; round++) {
      if (ready()) return;
      pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers.count++;
    sleepers.bell.wait(lock, ready);
    sleepers.count--;
  }
  void ring(Sleepers& sleepers) {
    if (sleepers.count == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    sleepers.bell.notify_all();
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  Source source_ = region;
  int size_ = 1;                                       // threads that take part
  void (*call_)(const void*, int64_t, int) = nullptr;  // written before tickets are out, read by who holds one
  const void* body_ = nullptr;
  alignas(64) std::atomic<uint64_t> tickets_{0};
  alignas(64) std::atomic<int64_t> left_{0};  // blocks that are not done
  std::atomic<bool> dismissed_{false};
  std::atomic<int> gone_{0};  // helpers that have left the region
  std::mutex mutex_, busy_;   // of the sleepers; held by the caller
  Sleepers helpers_[2], caller_;
  int num_helpers_ = 0;  // of our own
  Clock::time_point avoids_regions_until_{};
};

struct Range {
  int64_t first, last;
  int64_t size() const { return last - first; }
};

// Part `rank` of `count` things cut into `parts` nearly equal ranges.
inline Range part_of(int64_t count, int64_t rank, int64_t parts) {
  return {count * rank / parts, count * (rank + 1) / parts};
}

// Who works on one tile of examples: one worker of the crew by itself, or all of them, in so many pieces at a time.
struct Hands {
  Crew* crew;
  int worker;
  int64_t pieces;

  // Calls body(piece, worker, range) for the ranges of `count` things, one for each piece (but none without a thing), and
  // waits for all.
  template <class Body>
  void share(int64_t count, Body&& body) const {
    const int64_t cut = pieces < count ? pieces : count;
    if (cut <= 1) return body(int64_t(0), worker, Range{0, count});
    crew->run(cut, [&](int64_t piece, int who) { body(piece, who, part_of(count, piece, cut)); });
  }
};

// How work is cut. Enough pieces that a thread that comes late costs little, not so many that adding up what they
// collect, or what each begins with, costs more.
constexpr int64_t most_pieces = 16;
constexpr int64_t least_entries = int64_t(1) << 14;      // of votes in a piece
constexpr int64_t few_examples = 8;                      // fewer than these are worked on by all hands together
constexpr int64_t most_parts_bytes = int64_t(64) << 20;  // of what all pieces collect

inline int64_t between(int64_t least, int64_t value, int64_t most) {
  return value > most ? most : value < least ? least : value;
}

// Pieces for `entries` of votes, where each piece collects `collected` bytes.
inline int64_t pieces_for(int64_t entries, int64_t collected) {
  const int64_t affordable = between(2, most_parts_bytes / between(1, collected, most_parts_bytes), most_pieces);
  return between(1, entries / least_entries, affordable);
}

}  // namespace torchcaps
