"""Tiles of memory turned in registers.

    turn<64>(from, step, tall, wide, to)        to[i][k] = from[k * step + i]   for i < tall, k < wide

Rows of `to` are 64 elements apart. An element at a time, each store goes to a line of its own: `x.t() + z` of 256 KB took 1.8 times as
long, of bfloat16 2.3 times. Here 16 vectors are read as they lie, and four rounds of shuffles exchange halves of ever larger squares
between them (Eklundh, A fast computer method for matrix transposing, 1972).
"""

from __future__ import annotations

_USE = "turn<"

# Under clang, which has no `__builtin_shuffle`, and for elements of which no vector holds two, all is done by the last two loops.
_DEFINITIONS = """
#if defined(__AVX512BW__)
constexpr int TURNED_BYTES = 64;
#elif defined(__AVX2__)
constexpr int TURNED_BYTES = 32;
#else
constexpr int TURNED_BYTES = 16;
#endif
template <class T> struct Turned { static constexpr int N = TURNED_BYTES / sizeof(T) < 16 ? TURNED_BYTES / sizeof(T) : 16; };
template <int BYTES> struct Signed;
template <> struct Signed<1> { typedef signed char type; };
template <> struct Signed<2> { typedef short type; };
template <> struct Signed<4> { typedef int type; };
template <> struct Signed<8> { typedef long long type; };
#ifndef __clang__
template <int S, int N, class V, class M> INLINE void exchange(V* r) {
  M low, high;
  #pragma GCC unroll 16
  for (int k = 0; k < N; ++k) {
    low[k] = k & S ? N + k - S : k;
    high[k] = k & S ? N + k : k + S;
  }
  #pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
    if (i & S) continue;
    const V a = r[i], b = r[i + S];
    r[i] = __builtin_shuffle(a, b, low);
    r[i + S] = __builtin_shuffle(a, b, high);
  }
}
template <int SIDE, class T> INLINE void turn_square(const T* from, i64 step, T* to) {
  constexpr int N = Turned<T>::N;
  typedef T V __attribute__((vector_size(N * sizeof(T))));
  typedef T U __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
  typedef typename Signed<sizeof(T)>::type I;
  typedef I M __attribute__((vector_size(N * sizeof(T))));
  V r[N];
  #pragma GCC unroll 16
  for (int l = 0; l < N; ++l) r[l] = *(const U*)(from + l * step);
  exchange<1, N, V, M>(r);
  if constexpr (N > 2) exchange<2, N, V, M>(r);
  if constexpr (N > 4) exchange<4, N, V, M>(r);
  if constexpr (N > 8) exchange<8, N, V, M>(r);
  #pragma GCC unroll 16
  for (int l = 0; l < N; ++l) *(U*)(to + l * SIDE) = r[l];
}
#endif
template <int SIDE, class T> INLINE void turn(const T* from, i64 step, i64 tall, i64 wide, T* to) {
  i64 k = 0;
#ifndef __clang__
  constexpr int N = Turned<T>::N;
  for (; k + N <= wide; k += N) {
    i64 i = 0;
    for (; i + N <= tall; i += N) turn_square<SIDE>(from + k * step + i, step, to + i * SIDE + k);
    for (; i < tall; ++i)
      for (int l = 0; l < N; ++l) to[i * SIDE + k + l] = from[(k + l) * step + i];
  }
#endif
  for (; k < wide; ++k)
    for (i64 i = 0; i < tall; ++i) to[i * SIDE + k] = from[k * step + i];
}
"""


def turn_definitions(text: str) -> str:
    """What a unit needs for the calls in `text`."""
    return _DEFINITIONS if _USE in text else ""
