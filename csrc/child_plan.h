// The order in which children are visited.
//
// A unit is a run of consecutive children that are seen by the same windows in consecutive slots (the types at
// one position of a feature map, for example). Visiting a child together with all windows that see it gives
// every kind of competition in one pass over the votes: everything that is normalised together is at hand.
// Units that use the same transformations follow each other, so that weights are read from near caches.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "votes.h"

namespace torchcaps {
namespace by_child {

struct Sight {  // a window and the slot in which it sees the first child of a unit
  int32_t window, slot;
};

struct Unit {
  int64_t child;        // the first child
  int count;            // how many children
  int64_t first, last;  // its sights
  int64_t transform;    // of the first sight: the key of the order
};

struct Plan {
  static constexpr int largest_unit = 32;
  std::vector<Unit> units;
  std::vector<Sight> sights;
  int most_sights = 0;  // of any unit

  template <class T>
  explicit Plan(const Votes<T>& votes);
};

template <class T>
Plan::Plan(const Votes<T>& votes) {
  // Sights of every child in order of windows.
  std::vector<int64_t> start(votes.children + 1, 0);
  for (int64_t s = 0; s < votes.windows; s++)
    for (int64_t n = 0; n < votes.slots; n++) start[votes.child_at(s, n) + 1]++;
  for (int64_t i = 0; i < votes.children; i++) start[i + 1] += start[i];
  sights.resize(start.back());
  std::vector<int64_t> next(start.begin(), start.end() - 1);
  for (int64_t s = 0; s < votes.windows; s++)
    for (int64_t n = 0; n < votes.slots; n++) sights[next[votes.child_at(s, n)]++] = {int32_t(s), int32_t(n)};

  const auto continues = [&](int64_t child, int offset) {  // is child + offset seen like child, slots shifted?
    const int64_t count = start[child + 1] - start[child];
    const int64_t other = start[child + offset];
    if (start[child + offset + 1] - other != count) return false;
    for (int64_t k = 0; k < count; k++) {
      const Sight &a = sights[start[child] + k], &b = sights[other + k];
      if (a.window != b.window || a.slot + offset != b.slot) return false;
    }
    return true;
  };
  for (int64_t child = 0; child < votes.children;) {
    int count = 1;
    if (start[child] < start[child + 1]) {
      while (count < largest_unit && child + count < votes.children && continues(child, count)) count++;
      const int64_t transform = votes.transform_at(sights[start[child]].slot);
      units.push_back({child, count, start[child], start[child + 1], transform});
      require(start[child + 1] - start[child] <= largest_number);
      most_sights = std::max(most_sights, int(start[child + 1] - start[child]));
    }
    child += count;
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.transform < b.transform; });
}

}  // namespace by_child
}  // namespace torchcaps
