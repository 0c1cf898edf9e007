#include "scratch.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "abi.h"
#include "em.h"
#include "simd.h"
#include "softmax_options.h"
#include "votes.h"

namespace torchcaps {
namespace {

constexpr std::size_t huge_page = std::size_t(2) << 20;
constexpr std::size_t smallest_chunk = std::size_t(1) << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool poisons() {
  static const bool wanted = [] {
    const char* value = std::getenv("TORCHCAPS_POISON");
    return value && value[0] == '1';
  }();
  return wanted;
}

// All arenas, so that one call can release them.
struct Registry {
  std::mutex mutex;
  std::vector<Arena*> arenas;
};

Registry& registry() {
  static Registry* instance = new Registry;  // outlives every thread's arena
  return *instance;
}

}  // namespace

void prefer_huge_pages(void* memory, std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes < 2 * huge_page) return;
  const std::uintptr_t first = rounded_up(reinterpret_cast<std::uintptr_t>(memory), huge_page);
  const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / huge_page * huge_page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)memory;
  (void)bytes;
#endif
}

Arena::Arena() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().arenas.push_back(this);
}

Arena::~Arena() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& arenas = registry().arenas;
  arenas.erase(std::remove(arenas.begin(), arenas.end(), this), arenas.end());
  free_chunks();
}

Arena& Arena::here() {
  static thread_local Arena arena;
  return arena;
}

void Arena::release_all() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (Arena* arena : registry().arenas) {
    std::unique_lock<std::mutex> idle(arena->busy_, std::try_to_lock);
    if (idle) arena->free_chunks();
  }
}

void Arena::free_chunks() {
  for (const Chunk& chunk : chunks_) std::free(chunk.memory);
  chunks_.clear();
  chunk_ = used_ = 0;
}

void Arena::add_chunk(std::size_t bytes) {
  const bool large = bytes >= huge_page;
  const std::size_t size = rounded_up(std::max(bytes, smallest_chunk), large ? huge_page : alignment);
  chunks_.reserve(chunks_.size() + 1);
  void* memory = nullptr;
  if (posix_memalign(&memory, large ? huge_page : alignment, size)) throw std::bad_alloc();
  prefer_huge_pages(memory, size);
  chunks_.push_back({static_cast<char*>(memory), size});
}

void* Arena::take(std::size_t bytes) {
  bytes = rounded_up(std::max(bytes, std::size_t(1)), alignment);
  while (chunk_ < chunks_.size() && chunks_[chunk_].size - used_ < bytes) {
    chunk_++;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) add_chunk(bytes);
  char* block = chunks_[chunk_].memory + used_;
  used_ += bytes;
  if (poisons()) std::memset(block, 0xff, bytes);  // all bits set is a NaN in every float type
  return block;
}

// After the outermost frame: one chunk that would have held everything, or none when that is too much.
void Arena::settle() {
  std::size_t total = 0;
  for (const Chunk& chunk : chunks_) total += chunk.size;
  if (chunks_.size() <= 1 && total <= kept_bytes) return;
  free_chunks();
  if (total > kept_bytes) return;
  try {
    add_chunk(total);
  } catch (const std::bad_alloc&) {
    // The next call will ask again, and may report the failure itself.
  }
}

Arena::Frame::Frame(Arena& arena) : arena_(arena) {
  if (arena_.frames_++ == 0) arena_.busy_.lock();
  chunk_ = arena_.chunk_;
  used_ = arena_.used_;
}

Arena::Frame::~Frame() {
  arena_.chunk_ = chunk_;
  arena_.used_ = used_;
  if (--arena_.frames_ > 0) return;
  arena_.settle();
  arena_.busy_.unlock();
}

}  // namespace torchcaps

TORCHCAPS_EXPORT int torchcaps_release_scratch() {
  return torchcaps::guarded([] { torchcaps::Arena::release_all(); });
}

TORCHCAPS_EXPORT int torchcaps_abi_version() { return torchcaps::abi_version; }

// The sizes of the structs Python fills, so that the loader can see that both sides mean the same ones.
TORCHCAPS_EXPORT int torchcaps_votes_bytes() { return sizeof(torchcaps::Votes<float>); }
TORCHCAPS_EXPORT int torchcaps_em_options_bytes() { return sizeof(torchcaps::EmOptions<float>); }
TORCHCAPS_EXPORT int torchcaps_softmax_options_bytes() { return sizeof(torchcaps::SoftmaxOptions); }

// What a register of this build holds, to which kernels that work child by child pad parents.
TORCHCAPS_EXPORT int torchcaps_register_bytes() { return torchcaps::register_bytes; }

// Whether this processor runs the build for an instruction set; to be asked of the portable one.
TORCHCAPS_EXPORT int torchcaps_cpu_runs_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}
TORCHCAPS_EXPORT int torchcaps_cpu_runs_avx512() {
#if defined(__x86_64__)
  return torchcaps_cpu_runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return 0;
#endif
}
