// Vectors as wide as LANE_BYTES and the elementary functions on them.

typedef float F __attribute__((vector_size(LANE_BYTES)));
typedef int32_t FI __attribute__((vector_size(LANE_BYTES)));
typedef double D __attribute__((vector_size(LANE_BYTES)));
typedef int64_t DI __attribute__((vector_size(LANE_BYTES)));
typedef float HalfF __attribute__((vector_size(LANE_BYTES / 2)));

constexpr int NF = LANE_BYTES / 4;
constexpr int ND = LANE_BYTES / 8;
constexpr double LN2 = 0.69314718055994530942;
constexpr double HALF_LN_2PI = 0.91893853320467274178;

INLINE F splat(float x) { return x - F{}; }
INLINE D splat(double x) { return x - D{}; }

INLINE F load(const float* from) {
    F v;
    memcpy(&v, from, sizeof v);
    return v;
}
INLINE D load(const double* from) {
    D v;
    memcpy(&v, from, sizeof v);
    return v;
}
INLINE void store(float* to, F v) { memcpy(to, &v, sizeof v); }
INLINE void store(double* to, D v) { memcpy(to, &v, sizeof v); }

#if defined(SHUFFLES) // memory in between would keep sums out of registers
template <int first, int... i> INLINE D lanes_from(F v, std::integer_sequence<int, i...>) {
    return __builtin_convertvector(__builtin_shufflevector(v, v, (first + i)...), D);
}
INLINE D low_half(F v) { return lanes_from<0>(v, std::make_integer_sequence<int, ND>{}); }
INLINE D high_half(F v) { return lanes_from<ND>(v, std::make_integer_sequence<int, ND>{}); }
#else
INLINE D low_half(F v) {
    HalfF half;
    memcpy(&half, &v, sizeof half);
    return __builtin_convertvector(half, D);
}
INLINE D high_half(F v) {
    HalfF half;
    memcpy(&half, reinterpret_cast<const char*>(&v) + sizeof half, sizeof half);
    return __builtin_convertvector(half, D);
}
#endif
INLINE D widened_sum(F v) { return low_half(v) + high_half(v); }

INLINE double sum(D v) {
    double part[ND];
    memcpy(part, &v, sizeof v);
    for (int width = ND / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    return part[0];
}
INLINE int64_t sum(FI v) {
    int32_t part[NF];
    memcpy(part, &v, sizeof v);
    for (int width = NF / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    return part[0];
}
INLINE int64_t sum(DI v) {
    int64_t part[ND];
    memcpy(part, &v, sizeof v);
    for (int width = ND / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    return part[0];
}
INLINE double product(D v) {
    double part[ND];
    memcpy(part, &v, sizeof v);
    for (int width = ND / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] *= part[i + width];
    return part[0];
}
// In halves, so that few comparisons wait for another.
INLINE double largest(D v) {
    double part[ND];
    memcpy(part, &v, sizeof v);
    for (int width = ND / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] = part[i + width] > part[i] ? part[i + width] : part[i];
    return part[0];
}
INLINE float largest(F v) {
    float part[NF];
    memcpy(part, &v, sizeof v);
    for (int width = NF / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] = part[i + width] > part[i] ? part[i + width] : part[i];
    return part[0];
}

// Lanes where the mask is −1 keep their value, the others become zero.
INLINE F keep(FI mask, F v) { return (F)((FI)v & mask); }
INLINE D keep(DI mask, D v) { return (D)((DI)v & mask); }

// The sum in lanes where the mask is −1; the others keep a.
#if LANE_BYTES == 64
INLINE F plus(FI mask, F a, F b) { return mask ? a + b : a; }
#else
INLINE F plus(FI mask, F a, F b) { return a + keep(mask, b); }
#endif

// Lanes of the classes from `first` on that exist and are not `left_out`.
INLINE FI counted(FI, int64_t first, int64_t classes, int64_t left_out) {
    FI index;
    for (int i = 0; i < NF; ++i) index[i] = i;
    return (index < int32_t(classes - first)) & (index != int32_t(left_out - first));
}
INLINE DI counted(DI, int64_t first, int64_t classes, int64_t left_out) {
    DI index;
    for (int i = 0; i < ND; ++i) index[i] = i;
    return (index < classes - first) & (index != left_out - first);
}

// The first `count` numbers, and zeros; and back.
#if defined(__x86_64__) && LANE_BYTES == 64
INLINE F load_part(const float* from, int64_t count) { return (F)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from); }
INLINE D load_part(const double* from, int64_t count) { return (D)_mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), from); }
INLINE void store_part(float* to, int64_t count, F v) { _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), (__m512)v); }
INLINE void store_part(double* to, int64_t count, D v) { _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), (__m512d)v); }
#elif defined(__x86_64__) && LANE_BYTES == 32
INLINE F load_part(const float* from, int64_t count) { return (F)_mm256_maskload_ps(from, (__m256i)counted(FI{}, 0, count, -1)); }
INLINE D load_part(const double* from, int64_t count) { return (D)_mm256_maskload_pd(from, (__m256i)counted(DI{}, 0, count, -1)); }
INLINE void store_part(float* to, int64_t count, F v) { _mm256_maskstore_ps(to, (__m256i)counted(FI{}, 0, count, -1), (__m256)v); }
INLINE void store_part(double* to, int64_t count, D v) { _mm256_maskstore_pd(to, (__m256i)counted(DI{}, 0, count, -1), (__m256d)v); }
#else
INLINE F load_part(const float* from, int64_t count) {
    F v{};
    memcpy(&v, from, size_t(count) * sizeof(float));
    return v;
}
INLINE D load_part(const double* from, int64_t count) {
    D v{};
    memcpy(&v, from, size_t(count) * sizeof(double));
    return v;
}
INLINE void store_part(float* to, int64_t count, F v) { memcpy(to, &v, size_t(count) * sizeof(float)); }
INLINE void store_part(double* to, int64_t count, D v) { memcpy(to, &v, size_t(count) * sizeof(double)); }
#endif

// As many of a row's numbers as are left of it.
INLINE F load_up_to(const float* from, int64_t left) { return left >= NF ? load(from) : load_part(from, left); }
INLINE void store_up_to(float* to, int64_t left, F v) { left >= NF ? store(to, v) : store_part(to, left, v); }
INLINE D load_up_to(const double* from, int64_t left) { return left >= ND ? load(from) : load_part(from, left); }
INLINE void store_up_to(double* to, int64_t left, D v) { left >= ND ? store(to, v) : store_part(to, left, v); }
INLINE DI existing(int64_t left) { return left >= ND ? ~DI{} : counted(DI{}, 0, left, -1); }
INLINE FI existing(FI, int64_t left) { return left >= NF ? ~FI{} : counted(FI{}, 0, left, -1); }

#if defined(SHUFFLES)
// Blocks of `size` lanes: the even ones of a and b in turn, or the odd ones.
template <int size, int... i> INLINE F even_blocks(F a, F b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (i / size % 2 ? NF + i - size : i)...);
}
template <int size, int... i> INLINE F odd_blocks(F a, F b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (i / size % 2 ? NF + i : i + size)...);
}
template <int size> INLINE void exchange_blocks(F (&v)[NF]) {
    if constexpr (size < NF) {
        for (int i = 0; i < NF; ++i) {
            if (i & size) continue;
            F a = v[i], b = v[i + size];
            v[i] = even_blocks<size>(a, b, std::make_integer_sequence<int, NF>{});
            v[i + size] = odd_blocks<size>(a, b, std::make_integer_sequence<int, NF>{});
        }
        exchange_blocks<2 * size>(v);
    }
}
INLINE void transpose(F (&v)[NF]) { exchange_blocks<1>(v); }
#endif

// In two chains, of the even and of the odd powers: half the wait for each result.
template <int N, class T, class V> INLINE V polynomial(const T (&c)[N], V x) {
    V square = x * x, even = splat(c[(N - 1) / 2 * 2]), odd = splat(c[(N - 2) / 2 * 2 + 1]);
    for (int i = (N - 1) / 2 * 2 - 2; i >= 0; i -= 2) even = even * square + c[i];
    for (int i = (N - 2) / 2 * 2 - 1; i >= 1; i -= 2) odd = odd * square + c[i];
    return even + odd * x;
}

// The derivative of a polynomial.
template <int N> INLINE D derivative_of(const double (&c)[N], D x) {
    D value = splat((N - 1) * c[N - 1]);
    for (int i = N - 2; i >= 1; --i) value = value * x + i * c[i];
    return value;
}

// e^x and e^x − 1, each with full relative precision, for |x| < 80; `low` is what rounding took from x.
template <bool with_low> INLINE void exponential_of(F x, F low, F& power, F& growth) {
    F shifted = x * 1.44269504f + 12582912.f; // rounds to a whole number, left in the low bits
    F n = shifted - 12582912.f;
    F f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    if (with_low) f += low;
    F tail = f + f * f * polynomial(EXPONENTIAL_F, f);
    F scale = (F)(((FI)shifted << 23) + 0x3f800000);
    power = scale + scale * tail;
    growth = scale * tail + (scale - 1.f);
}

INLINE void exponential(F x, F& power, F& growth) { exponential_of<false>(x, F{}, power, growth); }

// e^x and e^x − b, for ln b to twice the digits of a float: small, so that it comes after the multiple of ln 2, whose
// difference from a large x is exact. Where b is near, there is no multiple, and x − ln b is exact.
INLINE void exponential_beyond(F x, F b, F log_b, F log_b_rest, F& power, F& growth) {
    F shifted = (x - log_b) * 1.44269504f + 12582912.f;
    F n = shifted - 12582912.f;
    F f = (((x - n * 0.693359375f) - log_b) - n * -2.12194440e-4f) - log_b_rest;
    F tail = f + f * f * polynomial(EXPONENTIAL_F, f);
    F scale = b * (F)(((FI)shifted << 23) + 0x3f800000);
    power = scale + scale * tail;
    growth = scale * tail + (scale - b);
}

// e^x, with full relative precision or, if not `fine`, to 1e-12, for |x| < 700.
template <bool fine = true> INLINE D exponential(D x) {
    constexpr double c[] = {1.,          1.,           1. / 2,        1. / 6,         1. / 24,
                            1. / 120,    1. / 720,     1. / 5040,     1. / 40320,     1. / 362880,
                            1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800.};
    constexpr double c_short[] = {1.,       1.,        1. / 2,     1. / 6,      1. / 24,     1. / 120,
                                  1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800};
    D shifted = x * 1.4426950408889634 + 6755399441055744.;
    D n = shifted - 6755399441055744.;
    D f = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    D scale = (D)(((DI)shifted << 52) + 0x3ff0000000000000);
    return scale * (fine ? polynomial(c, f) : polynomial(c_short, f));
}

// e^x and e^x − 1, each with full relative precision or, if not `fine`, to 1e-12, for |x| < 700.
template <bool fine> INLINE void exponential(D x, D& power, D& growth) {
    constexpr double c[] = {1. / 2,     1. / 6,      1. / 24,      1. / 120,      1. / 720,       1. / 5040,
                            1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800.};
    constexpr double c_short[] = {1. / 2,    1. / 6,     1. / 24,     1. / 120,    1. / 720,
                                  1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800};
    D shifted = x * 1.4426950408889634 + 6755399441055744.;
    D n = shifted - 6755399441055744.;
    D f = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    D tail = f + f * f * (fine ? polynomial(c, f) : polynomial(c_short, f));
    D scale = (D)(((DI)shifted << 52) + 0x3ff0000000000000);
    power = scale + scale * tail;
    growth = scale * tail + (scale - 1.);
}

// ln x for normal x > 0, with full precision or to 1e-12, and 1/y at the price of the one division that it needs.
template <bool fine = true> INLINE D logarithm_and_inverse(D x, D y, D& inverse) {
    constexpr double c[] = {1.,      1. / 3,  1. / 5,  1. / 7,  1. / 9, 1. / 11,
                            1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21};
    constexpr double c_short[] = {1., 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13};
    DI bits = (DI)x - 0x3fe6a09e667f3bcd; // so that the mantissa lies between √½ and √2
    D mantissa = (D)((bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
    D both = 1. / ((mantissa + 1.) * y), s = (mantissa - 1.) * (both * y);
    inverse = both * (mantissa + 1.);
    // whole numbers of this size convert by adding them to the bits of a large one
    D n = (D)((bits >> 52) + 0x4338000000000000) - 6755399441055744.;
    D series = fine ? polynomial(c, s * s) : polynomial(c_short, s * s);
    return n * 0.693147180369123816490 + (2. * s * series + n * 1.90821492927058770002e-10);
}

// ln x for normal x > 0.
INLINE F logarithm(F x) {
    FI bits = (FI)x - 0x3f3504f3; // so that the mantissa lies between √½ and √2
    F n = __builtin_convertvector(bits >> 23, F);
    F f = (F)((bits & 0x7fffff) + 0x3f3504f3) - 1.f;
    return n * 0.693359375f + (n * -2.12194440e-4f + (f + f * f * polynomial(LOGARITHM_F, f)));
}

INLINE D logarithm(D x) {
    D one;
    return logarithm_and_inverse(x, splat(1.), one);
}

// ln(1 + v) for v ≥ 0, with full relative precision.
INLINE D logarithm_of_next(D v) {
    D next = 1. + v;
    return logarithm(next) + (v - (next - 1.)) / next;
}

INLINE D select(DI where, D yes, D no) { return where ? yes : no; }
INLINE D smaller(D a, D b) { return select(a < b, a, b); }
INLINE D larger(D a, D b) { return select(a > b, a, b); }
INLINE F smaller(F a, F b) { return a < b ? a : b; }
INLINE F larger(F a, F b) { return a > b ? a : b; }
INLINE D magnitude(D v) { return (D)((DI)v & 0x7fffffffffffffff); }
INLINE F magnitude(F v) { return (F)((FI)v & 0x7fffffff); }

#if defined(__x86_64__) && LANE_BYTES == 64
INLINE bool any(FI mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
INLINE bool any(DI mask) { return _mm512_movepi64_mask((__m512i)mask) != 0; }
#elif defined(__x86_64__) && LANE_BYTES == 32
INLINE bool any(FI mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
INLINE bool any(DI mask) { return _mm256_movemask_pd((__m256d)mask) != 0; }
#else
INLINE bool any(FI mask) {
    int32_t found = 0;
    for (int i = 0; i < NF; ++i) found |= mask[i];
    return found != 0;
}
INLINE bool any(DI mask) {
    int64_t found = 0;
    for (int i = 0; i < ND; ++i) found |= mask[i];
    return found != 0;
}
#endif
INLINE bool none(FI mask) { return !any(mask); }

// Where the largest is; anywhere if one is not a number.
INLINE int64_t position_of_largest(const float* values, int64_t classes) {
    F tops = splat(values[0]);
    int64_t k = 0;
    for (; k + NF <= classes; k += NF) tops = larger(load(values + k), tops);
    float top = largest(tops);
    for (; k < classes; ++k) top = values[k] > top ? values[k] : top;
    for (k = 0; k + NF <= classes && none(load(values + k) == top); k += NF) {}
    for (; k < classes - 1 && values[k] != top; ++k) {}
    return k;
}

INLINE int64_t position_of_largest(const double* values, int64_t count) {
    int64_t k = 0;
    double top = values[0];
    if (count >= ND) {
        D tops = load(values);
        for (k = ND; k + ND <= count; k += ND) tops = larger(load(values + k), tops);
        top = largest(tops);
    }
    for (; k < count; ++k) top = values[k] > top ? values[k] : top;
    int64_t position = 0;
    while (values[position] != top) ++position;
    return position;
}

// NaN is not within.
INLINE bool all_within(const double* values, int64_t count, double low, double high) {
    DI outside{};
    int64_t k = 0;
    for (; k + ND <= count; k += ND) {
        D v = load(values + k);
        outside |= ~((v >= low) & (v <= high));
    }
    bool all = true;
    for (int i = 0; i < ND; ++i) all = all && outside[i] == 0;
    for (; k < count; ++k) all = all && values[k] >= low && values[k] <= high;
    return all;
}

// The remainders of `special`, to 1e-16 or, for logits of single precision, to 1e-10.
template <bool fine> INLINE D lgamma_remainder(D w) {
    return fine ? polynomial(LGAMMA_D, w) : polynomial(SHORT_LGAMMA_D, w);
}
template <bool fine> INLINE D digamma_remainder(D w) {
    return fine ? polynomial(DIGAMMA_D, w) : polynomial(SHORT_DIGAMMA_D, w);
}
template <bool fine> INLINE D trigamma_remainder(D w) {
    return fine ? polynomial(TRIGAMMA_D, w) : polynomial(SHORT_TRIGAMMA_D, w);
}
