"""Conversions from and to float16 on whole vectors, by the processor's own instructions.

    v2 = vector_from_f16(p[i])        p[i] = vector_to_f16(v2)

g++ 12 has no vector form of its conversions, and `from_f16` and `to_f16` (prelude.hpp) take about twelve operations on integers each:
`x * 2.5` took five times as long as in eager. The functions are declared with g++'s attribute `simd`, as in `vector_math`, and their vector
forms stand in the unit. Their values are the prelude's, bit for bit.
"""

from __future__ import annotations

import re

# The bits of a number to read come in 32 bits: of 16, g++ 12 makes no vector that fits one of as many floats.
_USE = re.compile(r"vector_(?:from|to)_f16\(")

_DEFINITIONS = """
#if defined(__F16C__) && defined(__AVX2__) && defined(__x86_64__) && !defined(__AVX512FP16__) && __GNUC__ >= 12 && !defined(__clang__)
#define HALVES_OWN extern "C" __attribute__((visibility("hidden")))
#define HALVES_SIMD HALVES_OWN __attribute__((simd("notinbranch"), const, nothrow, leaf))
HALVES_SIMD u16 vector_to_f16(float);
HALVES_SIMD float vector_from_f16(u32);
// Under other names: of a definition of these g++ would make vector forms itself.
HALVES_OWN u16 w_to_f16(float x) asm("vector_to_f16");
u16 w_to_f16(float x) { return to_f16(x); }
HALVES_OWN float w_from_f16(u32 x) asm("vector_from_f16");
float w_from_f16(u32 x) { return from_f16((u16)x); }
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef short i16x8 __attribute__((vector_size(16)));
typedef short i16x16 __attribute__((vector_size(32)));
typedef int i32x4 __attribute__((vector_size(16)));
typedef int i32x8 __attribute__((vector_size(32)));
HALVES_OWN i16x8 to_f16_c(f32x8 x) asm("_ZGVcN8v_vector_to_f16");
i16x8 to_f16_c(f32x8 x) { return __builtin_ia32_vcvtps2ph256(x, 0); }
HALVES_OWN i16x8 to_f16_b(f32x4 x, f32x4 y) asm("_ZGVbN8v_vector_to_f16");
i16x8 to_f16_b(f32x4 x, f32x4 y) { return to_f16_c(__builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7)); }
HALVES_OWN i16x16 to_f16_d(f32x8 x, f32x8 y) asm("_ZGVdN16v_vector_to_f16");
i16x16 to_f16_d(f32x8 x, f32x8 y) {
  i16x8 low = to_f16_c(x), high = to_f16_c(y);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
HALVES_OWN f32x8 from_f16_d(i32x8 x) asm("_ZGVdN8v_vector_from_f16");
f32x8 from_f16_d(i32x8 x) { return __builtin_ia32_vcvtph2ps256(__builtin_convertvector(x, i16x8)); }
HALVES_OWN f32x8 from_f16_c(i32x4 x, i32x4 y) asm("_ZGVcN8v_vector_from_f16");
f32x8 from_f16_c(i32x4 x, i32x4 y) { return from_f16_d(__builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7)); }
HALVES_OWN f32x4 from_f16_b(i32x4 x) asm("_ZGVbN4v_vector_from_f16");
f32x4 from_f16_b(i32x4 x) {
  f32x8 wide = from_f16_c(x, x);
  return __builtin_shufflevector(wide, wide, 0, 1, 2, 3);
}
#ifdef __AVX512F__
typedef float f32x16 __attribute__((vector_size(64)));
typedef short i16x32 __attribute__((vector_size(64)));
typedef int i32x16 __attribute__((vector_size(64)));
INLINE i16x16 to_f16_16(f32x16 x) { return __builtin_ia32_vcvtps2ph512_mask(x, 0, i16x16{}, -1); }
HALVES_OWN i16x32 to_f16_e(f32x16 x, f32x16 y) asm("_ZGVeN32v_vector_to_f16");
i16x32 to_f16_e(f32x16 x, f32x16 y) {
  i16x16 low = to_f16_16(x), high = to_f16_16(y);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                 23, 24, 25, 26, 27, 28, 29, 30, 31);
}
HALVES_OWN f32x16 from_f16_e(i32x16 x) asm("_ZGVeN16v_vector_from_f16");
f32x16 from_f16_e(i32x16 x) {
  return __builtin_ia32_vcvtph2ps512_mask(__builtin_convertvector(x, i16x16), f32x16{}, -1, 4);
}
#endif
#else
#define vector_to_f16 to_f16
#define vector_from_f16 from_f16
#endif
"""


def calls_half_functions(text: str) -> bool:
    """Whether `text` has a call of one of the two functions."""
    return _USE.search(text) is not None


def half_definitions(text: str) -> str:
    """What a unit needs for the calls in `text`."""
    return _DEFINITIONS if calls_half_functions(text) else ""


__all__ = ["calls_half_functions", "half_definitions"]
