// Scalar functions of generated kernels. No header is included, which keeps a compile at a tenth of a second; everything
// is branch-free so that the compiler's vectoriser takes whole loops. Coefficients are Chebyshev fits made for Treadle.
typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef i64 int64_t;
namespace std {  // what printed index expressions use
template <class T> constexpr T min(T a, T b) { return a < b ? a : b; }
template <class T> constexpr T max(T a, T b) { return a > b ? a : b; }
}
#define INLINE static inline __attribute__((always_inline))
#define MEMBER __attribute__((always_inline))
// No analysis of a kernel from its callers: g++ 12 takes some kernels for functions without effect and drops the call
// (ivopts rewrites the addresses of a nest of two loops of length 2, and ipa-pure-const no longer sees the store).
#if defined(__clang__)
#define KERNEL static __attribute__((noinline))
#define PREFER_VECTORS(width)
#define LONG_SEGMENT
#else
// Nothing but calls: more optimisation takes longer than the kernels themselves, and gains nothing.
#define LONG_SEGMENT __attribute__((optimize("O1")))
#define PREFER_VECTORS(width) __attribute__((target(width)))
#define KERNEL static __attribute__((noipa))
#endif
// The compiler does not know any more where a pointer comes from.
#define FORGET(pointer) __asm__("" : "+r"(pointer))
// In a loop around one that is to have vectors. g++ makes vectors of the points of the loop around where it can, be it five points.
#define NO_VECTORS_AROUND __asm__ volatile("")

// A position that is computed from bools, in a form that is not folded. g++ 12 takes the offsets of a vector gather back to the vector of bools
// itself, whose elements are no integers, and reads elsewhere: b[(i64)(x[j] > 0)].
extern "C" __attribute__((weak, visibility("hidden"))) i64 hidden_zero = 0;
INLINE i64 hidden(i64 position) { return position ^ hidden_zero; }

// A float cut to a whole number, of which a float is made again. g++ computes (float)(i32)x as trunc(x), which is -0 for -0.5 and has no bounds.
#if __has_builtin(__builtin_assoc_barrier)
template <class T> INLINE T cut(T whole) { return __builtin_assoc_barrier(whole); }
#else
template <class T> INLINE T cut(T whole) { return whole ^ (T)hidden_zero; }
#endif

// The C library's power, which is Python's: under its own name the compiler replaces some calls by others that round differently.
#if defined(__APPLE__)
extern "C" double exact_pow(double, double) __asm__("_pow");
#else
extern "C" double exact_pow(double, double) __asm__("pow");
#endif

INLINE float as_float(i32 x) { return __builtin_bit_cast(float, x); }
INLINE i32 as_int(float x) { return __builtin_bit_cast(i32, x); }

// 2^n for -126 <= n <= 127
INLINE float pow2i(i32 n) { return as_float((n + 127) << 23); }

// a * b + c, rounded once where the processor does that in one instruction. The compiler contracts nothing by itself
// (-ffp-contract=off): what the program computes is rounded as in eager.
#if defined(__FMA__) || defined(__aarch64__) || defined(__ARM_FEATURE_FMA)
INLINE float mul_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
INLINE float mul_add(float a, float b, float c) { return a * b + c; }
#endif
INLINE float f_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double f_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// exp(x) == (1 + m) * 2^k with |m| < 0.42, for |x| < 2^21; elsewhere m and k mean nothing, and m is NaN for NaN.
struct ExpParts { float m; i32 bits; };  // bits == k + EXP_BIAS
constexpr i32 EXP_BIAS = 0x4b400000;  // 1.5 * 2^23 as a float; its last 9 bits are 0
INLINE ExpParts exp_parts(float x) {
  float t = mul_add(x, 1.44269504f, 12582912.0f);  // adding 1.5 * 2^23 rounds to an integer, which stands in the low bits
  float n = t - 12582912.0f;
  float r = mul_add(n, -0.693145751953125f, x);
  r = mul_add(n, -1.4286068e-06f, r);
  float q = 1.392625039e-03f;
  q = mul_add(q, r, 8.363232948e-03f);
  q = mul_add(q, r, 4.166655242e-02f);
  q = mul_add(q, r, 1.666657627e-01f);
  q = mul_add(q, r, 5.000000000e-01f);
  return {mul_add(q * r, r, r), as_int(t)};
}

// NaN comes through the arithmetic and then falls through every comparison; overflow and denormals come from the product.
INLINE float f_exp(float x) {
  ExpParts e = exp_parts(x);
  i32 k = e.bits - EXP_BIAS, h = k >> 1;  // 2^k in two factors: k reaches from -150 (denormals) to 128
  float y = (e.m + 1.0f) * pow2i(h) * pow2i(k - h);
  y = x > 89.0f ? __builtin_inff() : y;  // chosen last, the comparisons do not delay the polynomial
  return x < -104.0f ? 0.0f : y;
}
INLINE float f_expm1(float x) {
  float c = x > 88.8f ? 88.8f : x;
  c = c < -30.0f ? -30.0f : c;
  ExpParts e = exp_parts(c);
  float half = pow2i(e.bits - EXP_BIAS - 1);
  float y = 2.0f * mul_add(half, e.m, half - 0.5f);
  y = x > 88.8f ? __builtin_inff() : y;
  y = x == 0.0f ? x : y;
  return x != x ? x : y;
}
INLINE float f_log(float x) {
  float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
  i32 bits = as_int(scaled);
  i32 e = (bits - 0x3f3504f3) >> 23;  // mantissa into [sqrt(1/2), sqrt(2))
  float f = as_float(bits - (e << 23)) - 1.0f;
  float k = (float)e - (x < 1.17549435e-38f ? 23.0f : 0.0f);
  float q = 6.971611828e-02f;
  q = mul_add(q, f, -1.147973388e-01f);
  q = mul_add(q, f, 1.168541983e-01f);
  q = mul_add(q, f, -1.242568716e-01f);
  q = mul_add(q, f, 1.424905807e-01f);
  q = mul_add(q, f, -1.666780263e-01f);
  q = mul_add(q, f, 2.000071555e-01f);
  q = mul_add(q, f, -2.499999702e-01f);
  q = mul_add(q, f, 3.333333135e-01f);
  float s = f * f;
  float y = mul_add(-0.5f, s, mul_add(q, s * f, k * 1.4286068e-06f));
  y = mul_add(k, 0.693145751953125f, y + f);
  y = x == __builtin_inff() ? x : y;
  y = x == 0.0f ? -__builtin_inff() : y;
  return x < 0.0f || x != x ? __builtin_nanf("") : y;
}
INLINE float f_log1p(float x) {
  float u = 1.0f + x;
  float d = u - 1.0f;
  float y = f_log(u) * (x / d);  // the rounding of 1 + x is made good by the quotient
  y = d == 0.0f ? x : y;
  y = x == __builtin_inff() ? x : y;
  return u == 0.0f ? -__builtin_inff() : y;
}
INLINE float f_tanh(float x) {
  float a = __builtin_fabsf(x), s = x * x;
  float q = -6.096714176e-03f;
  q = mul_add(q, s, 2.099717967e-02f);
  q = mul_add(q, s, -5.385090783e-02f);
  q = mul_add(q, s, 1.333276927e-01f);
  q = mul_add(q, s, -3.333332837e-01f);
  float small = mul_add(x, s * q, x);
  float big = 1.0f - 2.0f / (f_exp(2.0f * a) + 1.0f);
  return __builtin_copysignf(a >= 0.625f ? big : small, x);  // small loses the sign of -0
}
// e^|x| / 2 in two factors: e^|x| itself overflows where the result does not.
INLINE float f_cosh(float x) {
  float e = f_exp(0.5f * __builtin_fabsf(x));
  return e * (0.5f * e) + 0.5f / e / e;
}
INLINE float f_sinh(float x) {
  float a = __builtin_fabsf(x), e = f_exp(0.5f * a), t = f_expm1(a);
  float big = e * (0.5f * e) - 0.5f / e / e;
  float small = 0.5f * (t + t / (t + 1.0f));
  return __builtin_copysignf(a >= 1.0f ? big : small, x);  // NaN takes the small branch, and is NaN there
}
INLINE float f_sigmoid(float x) { return 1.0f / (1.0f + f_exp(-x)); }
INLINE float f_erf(float x) {
  float t = __builtin_fabsf(x), s = x * x;
  float q = 7.875874871e-05f;
  q = mul_add(q, s, -8.016864303e-04f);
  q = mul_add(q, s, 5.189087242e-03f);
  q = mul_add(q, s, -2.685421146e-02f);
  q = mul_add(q, s, 1.128359437e-01f);
  q = mul_add(q, s, -3.761262596e-01f);
  q = mul_add(q, s, 1.283791661e-01f);
  float small = mul_add(x, q, x);
  float c = t > 4.0f ? 4.0f : t;
  float l = -1.327236168e-05f;
  l = mul_add(l, c, 3.169370175e-04f);
  l = mul_add(l, c, -3.432351397e-03f);
  l = mul_add(l, c, 2.260477282e-02f);
  l = mul_add(l, c, -1.032811180e-01f);
  l = mul_add(l, c, -6.391412616e-01f);
  l = mul_add(l, c, -1.125893593e+00f);
  l = mul_add(l, c, -7.658977993e-04f);
  ExpParts e = exp_parts(l);  // exp(l) lies in [1e-8, 1]: no clamping, no denormals
  float p = as_float(as_int(e.m + 1.0f) + (e.bits << 23));
  return t >= 1.0f ? __builtin_copysignf(1.0f - p, x) : small;  // NaN takes the small branch, and is NaN there
}
// For |x| < 4, 1 - erf(|x|) == 2^l, l being a polynomial. Of erf only what is left beside 1 is computed, with an error of half of its last place.
INLINE float f_one_plus_erf(float x) {
  float t = __builtin_fabsf(x);
  t = t > 4.0f ? 4.0f : t;
  float l = 5.163104561e-06f;
  l = mul_add(l, t, -8.317969332e-05f);
  l = mul_add(l, t, 5.399145302e-04f);
  l = mul_add(l, t, -1.557487063e-03f);
  l = mul_add(l, t, -8.617171552e-04f);
  l = mul_add(l, t, 2.843482420e-02f);
  l = mul_add(l, t, -1.485951543e-01f);
  l = mul_add(l, t, -9.183883071e-01f);
  l = mul_add(l, t, -1.627910733e+00f);
  l = l * t;
  float k = l + 12582912.0f;  // as in exp_parts; 2^r for |r| <= 1/2
  float r = l - (k - 12582912.0f);
  float q = 1.547410211e-04f;
  q = mul_add(q, r, 1.340035349e-03f);
  q = mul_add(q, r, 9.618012235e-03f);
  q = mul_add(q, r, 5.550327525e-02f);
  q = mul_add(q, r, 2.402265072e-01f);
  q = mul_add(q, r, 6.931471825e-01f);
  float p = as_float(as_int(mul_add(q, r, 1.0f)) + (as_int(k) << 23));  // NaN stays NaN: its lowest 9 bits are 0
  return 1.0f + __builtin_copysignf(1.0f - p, x);
}
INLINE float f_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
INLINE double f_sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
INLINE double f_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
INLINE double f_exp(double x) { return __builtin_exp(x); }
INLINE double f_expm1(double x) { return __builtin_expm1(x); }
INLINE double f_log(double x) { return __builtin_log(x); }
INLINE double f_log1p(double x) { return __builtin_log1p(x); }
INLINE double f_tanh(double x) { return __builtin_tanh(x); }
INLINE double f_sinh(double x) { return __builtin_sinh(x); }
INLINE double f_cosh(double x) { return __builtin_cosh(x); }
INLINE double f_erf(double x) { return __builtin_erf(x); }
INLINE double f_one_plus_erf(double x) { return 1.0 + __builtin_erf(x); }

// The C library's functions, one overload for each width
#define LIBM1(name) \
  INLINE float f_##name(float x) { return __builtin_##name##f(x); } \
  INLINE double f_##name(double x) { return __builtin_##name(x); }
#define LIBM2(name) \
  INLINE float f_##name(float x, float y) { return __builtin_##name##f(x, y); } \
  INLINE double f_##name(double x, double y) { return __builtin_##name(x, y); }
LIBM1(exp2) LIBM1(log2) LIBM1(log10) LIBM1(sin) LIBM1(cos) LIBM1(tan) LIBM1(asin) LIBM1(acos) LIBM1(atan) LIBM1(asinh)
LIBM1(acosh) LIBM1(atanh) LIBM1(erfc) LIBM1(lgamma) LIBM1(sqrt) LIBM1(floor) LIBM1(ceil)
LIBM1(rint) LIBM1(trunc) LIBM1(fabs)
LIBM2(pow) LIBM2(atan2) LIBM2(hypot) LIBM2(fmod) LIBM2(copysign)

// NaN where the condition holds. Set in the bits: from two dependent choices between values g++ makes one of many masks, at twice the time.
INLINE float nan_if(bool c, float x) { return __builtin_bit_cast(float, __builtin_bit_cast(u32, x) | -(u32)c); }
INLINE double nan_if(bool c, double x) { return __builtin_bit_cast(double, __builtin_bit_cast(u64, x) | -(u64)c); }

// NaN if either is NaN, as torch.maximum and torch.minimum. A constant comes first where there is one: nothing is left to ask then.
template <class T> INLINE T t_max(T a, T b) { return a > b ? a : b; }
template <class T> INLINE T t_min(T a, T b) { return a < b ? a : b; }
INLINE float t_max(float a, float b) { return nan_if(a != a, a > b ? a : b); }
INLINE float t_min(float a, float b) { return nan_if(a != a, a < b ? a : b); }
INLINE double t_max(double a, double b) { return nan_if(a != a, a > b ? a : b); }
INLINE double t_min(double a, double b) { return nan_if(a != a, a < b ? a : b); }
template <class T> INLINE T t_abs(T a) { return a < 0 ? (T)-a : a; }
INLINE float t_abs(float a) { return __builtin_fabsf(a); }
INLINE double t_abs(double a) { return __builtin_fabs(a); }
// Opaque to the compiler: g++ 12 makes one fused operation of a*c - b*d next to a*d + b*c, -ffp-contract=off or not. Complex products
// are a*c + t_neg(b)*d.
INLINE float t_neg(float a) { return __builtin_bit_cast(float, __builtin_bit_cast(u32, a) ^ 0x80000000u); }
INLINE double t_neg(double a) { return __builtin_bit_cast(double, __builtin_bit_cast(u64, a) ^ 0x8000000000000000ull); }
// The sign moved to a 1: GCC 12 crashes on vectorised __builtin_signbit.
INLINE bool t_signbit(float a) { return __builtin_copysignf(1.0f, a) < 0; }
INLINE bool t_signbit(double a) { return __builtin_copysign(1.0, a) < 0; }
template <class T> INLINE T t_sign(T a) { return (T)((a > 0) - (a < 0)); }

// Integer division: C truncates, Python and torch round down
template <class T> INLINE T int_floordiv(T a, T b) {
  if (b > 0) { T s = (T)-(a < 0); return (T)(((T)(a ^ s) / b) ^ s); }  // ~(~a / b) where a is negative: half the time for a constant
  T q = (T)(a / b);
  return (T)(q - ((a % b != 0) && ((a < 0) != (b < 0))));
}
template <class T> INLINE T int_mod(T a, T b) { T r = (T)(a % b); return (T)(r + (((r != 0) && ((r < 0) != (b < 0))) ? b : 0)); }
INLINE i64 treadle_floordiv(i64 a, i64 b) { return int_floordiv(a, b); }
INLINE i64 treadle_mod(i64 a, i64 b) { return int_mod(a, b); }
INLINE i64 treadle_pow(i64 a, i64 n) { u64 r = 1, b = (u64)a; for (; n > 0; n >>= 1, b *= b) if (n & 1) r *= b; return (i64)r; }
INLINE i64 treadle_shl(i64 a, i64 n) { return n > 63 ? 0 : (i64)((u64)a << n); }
INLINE i64 treadle_shr(i64 a, i64 n) { return a >> (n > 63 ? 63 : n); }
// torch.remainder and floor division of floats (c10/util/generic_math.h gives the same cases)
// r and m are fmod(a, b)
template <class T> INLINE T float_mod(T r, T b) { return (r != 0) & ((b < 0) != (r < 0)) ? r + b : r; }
template <class T> INLINE T float_floordiv(T m, T a, T b) {
  T d = (a - m) / b;
  d = (m != 0) & ((b < 0) != (m < 0)) ? d - 1 : d;
  T down = f_floor(d);
  down = d - down > (T)0.5 ? down + 1 : down;
  down = d == 0 ? f_copysign((T)0, a / b) : down;
  return b == 0 ? a / b : down;
}

// g++ 12 takes (double)(float)x for x where it makes one vector of the last two turns of a loop. What hides the conversion from it: no
// conversion yields a signalling NaN.
INLINE float to_f32(double x) {
  i32 bits = as_int((float)x);
  return as_float(bits + (bits == 0x7f800001));
}

// bfloat16 and float16 in memory, float in registers
INLINE float from_bf16(u16 x) { return as_float((i32)((u32)x << 16)); }
INLINE u16 to_bf16(float x) {
  u32 b = (u32)as_int(x);
  u32 rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  return x != x ? (u16)0x7fc0 : (u16)rounded;
}
INLINE u16 cut_bf16(float x) { return (u16)((u32)as_int(x) >> 16); }  // of a bfloat16 number
// float16 in integer arithmetic where g++ 12 converts one element at a time. Numbers below 2^-14 are multiples of 2^-24: added to a power of
// two whose last place this is, they stand in its low bits, rounded by the addition.
#if defined(__AVX512FP16__) || !defined(__x86_64__) || defined(__clang__)
INLINE float from_f16(u16 x) { return (float)__builtin_bit_cast(_Float16, x); }
INLINE u16 to_f16(float x) { return __builtin_bit_cast(u16, (_Float16)x); }
#else
INLINE float from_f16(u16 x) {
  u32 h = x, m = (h & 0x7fff) << 13;
  u32 y = m + (m >= 0x0f800000 ? 0x70000000u : 0x38000000u);  // infinity and NaN keep the largest exponent
  u32 small = __builtin_bit_cast(u32, as_float((i32)(m + 0x38800000)) - 6.103515625e-05f);
  return as_float((i32)((m < 0x00800000 ? small : y) | (h & 0x8000) << 16));
}
INLINE u16 to_f16(float x) {
  u32 b = (u32)as_int(x), a = b & 0x7fffffff;
  u32 y = (a + 0xc8000fff + ((a >> 13) & 1)) >> 13;
  u32 small = (u32)as_int(as_float((i32)a) + 0.5f) - 0x3f000000;
  y = a < 0x38800000 ? small : y;
  y = a > 0x477fefff ? (a > 0x7f800000 ? 0x7e00 | ((a >> 13) & 0x3ff) : 0x7c00) : y;  // from 65520 on infinity
  return (u16)(y | (b >> 16 & 0x8000));
}
#endif

// Accumulators of a reduction, in vectors of the processor's length: of longer ones g++ compares element by element
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
struct LanesSum { template <class V> static V of(V a, V b) { return a + b; } };
struct LanesProduct { template <class V> static V of(V a, V b) { return a * b; } };
struct LanesMax { template <class V> static V of(V a, V b) { return b > a ? b : a; } };
struct LanesMin { template <class V> static V of(V a, V b) { return b < a ? b : a; } };
struct LanesOr { template <class V> static V of(V a, V b) { return a | b; } };
struct LanesAnd { template <class V> static V of(V a, V b) { return a & b; } };
template <class Op, class T, class V> INLINE T lanes_fold(V v) {
  constexpr int lanes = sizeof(V) / sizeof(T);
#if __has_builtin(__builtin_shufflevector)
  if constexpr (lanes == 32) {
    typedef T Half __attribute__((vector_size(sizeof(V) / 2)));
    Half halves[2];
    __builtin_memcpy(halves, &v, sizeof v);
    return lanes_fold<Op, T>(Op::of(halves[0], halves[1]));
  } else if constexpr (lanes == 16) {
    return lanes_fold<Op, T>(Op::of(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)));
  } else if constexpr (lanes == 8) {
    return lanes_fold<Op, T>(Op::of(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)));
  } else if constexpr (lanes == 2) {
    return Op::template of<T>(v[0], v[1]);
  } else {
    V pairs = Op::of(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
    return Op::of(pairs, __builtin_shufflevector(pairs, pairs, 2, 3, 0, 1))[0];
  }
#else
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) v[l] = Op::template of<T>(v[l], v[l + width]);
  return v[0];
#endif
}
template <class Op, class T, int lanes> struct Lanes {
  static constexpr int bytes = std::min<int>(VECTOR_BYTES, lanes * sizeof(T)), per_vector = bytes / sizeof(T), vectors = lanes / per_vector;
  typedef T V __attribute__((vector_size(bytes)));
  typedef T InMemory __attribute__((vector_size(bytes), aligned(sizeof(T)), may_alias));
  V of[vectors];
  MEMBER Lanes(T identity) {
#pragma GCC unroll 16
    for (int k = 0; k < vectors; ++k) of[k] = V{} + identity;
  }
  MEMBER static V at(const T* p, int k) { return *(const InMemory*)(p + k * per_vector); }
  MEMBER void take(const T* p) {
#pragma GCC unroll 16
    for (int k = 0; k < vectors; ++k) of[k] = Op::of(of[k], at(p, k));
  }
  MEMBER T fold() const {
    V all = of[0];
#pragma GCC unroll 16
    for (int k = 1; k < vectors; ++k) all = Op::of(all, of[k]);
    return lanes_fold<Op, T>(all);
  }
};
// maximum or minimum of floating-point numbers, NaN once one of them is: no comparison of them then waits for the one before
template <class T> struct AsWide { typedef i32 type; };
template <> struct AsWide<double> { typedef i64 type; };
template <class Op, class T, int lanes> struct LanesOrNan {
  typedef typename AsWide<T>::type Flag;
  typedef Flag Flags __attribute__((vector_size(Lanes<Op, T, lanes>::bytes)));
  Lanes<Op, T, lanes> best;
  Lanes<LanesOr, Flag, lanes> nan;
  MEMBER LanesOrNan(T identity) : best(identity), nan(0) {}
  MEMBER void take(const T* p) {
    best.take(p);
#pragma GCC unroll 16
    for (int k = 0; k < best.vectors; ++k) nan.of[k] |= (Flags)(best.at(p, k) != best.at(p, k));
  }
  MEMBER T fold() const { return nan.fold() ? (T)__builtin_nanf("") : best.fold(); }
};
