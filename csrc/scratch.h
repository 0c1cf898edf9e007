// Scratch memory that is kept between calls.
//
// Every calling thread owns one arena; a kernel opens a frame, takes blocks, and everything returns to the
// arena when the frame ends. Take blocks before a parallel region starts (one slice per worker): a failed
// allocation throws std::bad_alloc, which the C entry points turn into a status, and nothing may throw inside
// a region. The arena grows to the largest need seen, at most `Arena::kept_bytes` of it stays between calls,
// and `torchcaps_release_scratch` frees the rest. Blocks are 64-byte aligned and hold garbage: set
// TORCHCAPS_POISON=1 to fill them with NaN (tests do).
#pragma once
#include <cstddef>
#include <cstring>
#include <mutex>
#include <vector>

namespace torchcaps {

class Arena {
 public:
  static constexpr std::size_t kept_bytes = std::size_t(256) << 20;
  static constexpr std::size_t alignment = 64;

  // The arena of the calling thread.
  static Arena& here();
  // Frees the memory of every arena that is not in use.
  static void release_all();

  // Blocks taken while a frame is alive return to the arena when it ends.
  class Frame {
   public:
    explicit Frame(Arena& arena = here());
    ~Frame();
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    template <class T>
    T* take(std::size_t count) {
      return static_cast<T*>(arena_.take(count * sizeof(T)));
    }
    template <class T>
    T* zeros(std::size_t count) {
      return static_cast<T*>(std::memset(take<T>(count), 0, count * sizeof(T)));
    }

   private:
    Arena& arena_;
    std::size_t chunk_, used_;
  };

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

 private:
  struct Chunk {
    char* memory;
    std::size_t size;
  };

  void* take(std::size_t bytes);
  void add_chunk(std::size_t bytes);
  void free_chunks();
  void settle();

  std::mutex busy_;                    // held while a frame is alive
  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0, used_ = 0;   // the chunk in use and the bytes of it that are taken
  int frames_ = 0;
};

// Asks for huge pages behind a large, not yet touched block: without them the page faults of a 268 MB weight
// gradient cost more than computing it. Does nothing for small blocks or where the system has no such call.
void prefer_huge_pages(void* memory, std::size_t bytes);

}  // namespace torchcaps
