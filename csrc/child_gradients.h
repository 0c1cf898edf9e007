// What the backward passes that work child by child share: the gradient of a softmax, and where those of votes go.
#pragma once
#include "child_context.h"

namespace torchcaps {
namespace by_child {

// Sums of R * response, where the response of a parent is the gradient of its coupling R.
template <class T>
struct Responses {
  Vec<T>* response;  // [sights][block][vectors] of the children at hand
  Vec<T>* mean;      // [block][vectors]: their mean responses, one for each softmax

  void take(Arena::Frame& frame, const Layout<T>& layout, int most_competing) {
    response = frame.take<Vec<T>>(std::size_t(most_competing) * block * layout.vectors);
    mean = frame.take<Vec<T>>(block * layout.vectors);
  }

  // For each child of a block the sum over the parents in `count` windows.
  template <int Block>
  void sum(const Bench<T>& bench, int vectors, int count, T* sums) const {
    Vec<T> totals[Block] = {};
    for (int k = 0; k < count; k++) {
      for (int m = 0; m < Block; m++) {
        const int at = (k * Block + m) * vectors;
        for (int v = 0; v < vectors; v++) totals[m] += bench.coupling[at + v] * response[at + v];
      }
    }
    combine_lanes<T>(totals, Block, Add(), sums);
  }

  // The same over the parents that one softmax normalises: all of them, or (`by_type`) those of one type.
  template <int Block>
  void average(const Bench<T>& bench, int vectors, int count, const T* sums, bool by_type) const {
    for (int m = 0; m < Block; m++) {
      for (int v = 0; v < vectors; v++) {
        Vec<T> total = broadcast<T>(sums[m]);
        if (by_type) {
          total = Vec<T>{};
          for (int at = m * vectors + v; at < count * Block * vectors; at += Block * vectors)
            total += bench.coupling[at] * response[at];
        }
        mean[m * vectors + v] = total;
      }
    }
  }
};

// What is collected of the gradients of weights; what nobody asks for is null.
template <class T, class Shape>
struct Collected {
  Vec<T>* weight;  // [transforms][vectors][inner * outer]
  Vec<T>* bias;    // [transforms][vectors][D]

  void take(ChildContext<T, Shape>& context, bool weights, bool biases) {
    const int64_t transforms = context.votes.transforms;
    const auto room = [&](bool wanted, int64_t count) {
      return wanted ? context.frame.template take<Vec<T>>(count) : nullptr;
    };
    weight = room(weights, transforms * context.weight_registers);
    bias = room(biases, transforms * context.layout.entries());
  }

  void clear(const ChildContext<T, Shape>& context) const {
    const int64_t transforms = context.votes.transforms;
    if (weight) std::fill_n(weight, transforms * context.weight_registers, Vec<T>{});
    if (bias) std::fill_n(bias, transforms * context.layout.entries(), Vec<T>{});
  }

  // The gradient of the vote of one child goes to its pose ([R * K], lanes not yet summed; or null) and to its
  // transformation.
  void spend(const ChildContext<T, Shape>& context, int64_t slot, const Vec<T>* grad_vote, const T* from_pose,
             Vec<T>* pose) const {
    const int vectors = context.layout.vectors;
    const int64_t transform = context.votes.transform_at(slot);
    if (pose) add_pose_gradient<T>(context.shape, grad_vote, context.weight_of(slot), vectors, pose);
    if (weight)
      add_weight_gradient<T>(context.shape, from_pose, grad_vote, vectors,
                             weight + transform * context.weight_registers);
    if (!bias) return;
    Vec<T>* grad_bias = bias + transform * context.layout.entries();
    for (int h = 0; h < context.layout.entries(); h++) grad_bias[h] += grad_vote[h];
  }
};

// Sums what was collected in `num_parts` parts, part(n), and unpacks it: [rows][vectors][count] registers ->
// (rows, J, count).
template <class T, class Part>
void write_rows(Crew& crew, int64_t rows, int64_t parents, int vectors, int64_t num_parts, int64_t count, Part&& part,
                T* target) {
  constexpr int width = Simd<T>::width;
  const int64_t blocks = between(1, num_parts * rows * parents * count / least_entries, rows);
  crew.run(blocks, [&](int64_t block, int) {
    const Range own = part_of(rows, block, blocks);
    for (int64_t k = own.first; k < own.last; k++) {
      for (int v = 0; v < vectors; v++) {
        for (int64_t e = 0; e < count; e++) {
          Vec<T> total{};
          for (int64_t n = 0; n < num_parts; n++) total += part(n)[(k * vectors + v) * count + e];
          for (int lane = 0; lane < width && v * width + lane < parents; lane++)
            target[(k * parents + v * width + lane) * count + e] = total[lane];
        }
      }
    }
  });
}

// The same for every transformation.
template <class T, class Part>
void write_transforms(Crew& crew, const Votes<T>& votes, int vectors, int64_t num_parts, int64_t count, Part&& part,
                      T* target) {
  write_rows<T>(crew, votes.transforms, votes.parents, vectors, num_parts, count, part, target);
}

}  // namespace by_child
}  // namespace torchcaps
