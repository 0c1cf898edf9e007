// Pairs of bfloat16 in the place of one float, and their dot products, which some processors with AVX-512 have.
//
// The build for AVX-512 must run on the others too, so the two instructions are written out and not left to the compiler.
#pragma once

#include "simd.h"

#if defined(TORCHCAPS_AVX512)
#include <immintrin.h>
#endif

namespace torchcaps {

struct Pair {
  uint32_t bits;  // the first number is the lower half
};

template <>
struct Simd<Pair> {
  typedef Simd<float>::Int Vec;
  typedef int32_t Unaligned __attribute__((vector_size(register_bytes), aligned(4), may_alias));
};

#if defined(TORCHCAPS_AVX512) && __GNUC__ >= 11  // older compilers do not know the processor's flag

template <class T>
constexpr bool can_pair = sizeof(T) == 4;

inline bool processor_pairs() { return __builtin_cpu_supports("avx512bf16"); }

// Lane by lane, each rounded to the nearest bfloat16, of two the even one.
inline Vec<Pair> paired(Vec<float> first, Vec<float> second) {
  typedef int16_t Halves __attribute__((vector_size(register_bytes)));
  Halves halves;  // all first ones, then all second ones
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(second), "v"(first));
  return (Vec<Pair>)__builtin_shuffle(halves, Halves{0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}

// total + a_first b_first + a_second b_second in float32.
inline Vec<float> add_products(Vec<float> total, Vec<Pair> a, Vec<Pair> b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
  return total;
}

// The first of a register; the others are 0. Masked loads are left to ends of rows: they were far slower on long rows.
inline Vec<float> load_some(const float* from, int64_t entries) {
  if (entries >= Simd<float>::width) return load(from);
  return _mm512_maskz_loadu_ps(__mmask16((1 << entries) - 1), from);
}

// Rows of `count` numbers in pairs, the last one beside zeros if their number is odd. Writes whole registers: up to one
// less than a register of pairs behind the last is overwritten.
inline __attribute__((always_inline)) void pair_rows(const float* rows, int64_t num_rows, int64_t count, Pair* to) {
  for (int64_t r = 0; r < num_rows; r += 2, rows += 2 * count, to += count)
    for (int64_t i = 0; i < count; i += Simd<float>::width) {
      const Vec<float> first = load_some(rows + i, count - i);
      store(to + i, paired(first, r + 1 < num_rows ? load_some(rows + count + i, count - i) : Vec<float>{}));
    }
}

#else

template <class T>
constexpr bool can_pair = false;

inline bool processor_pairs() { return false; }

#endif

}  // namespace torchcaps
