// What metrics need of each row of probabilities or logits, from one visit while it lies in the nearest cache: the
// largest, the rank of the target, and a few sums, all of them in double.

template <class T> struct LanesOf;
template <> struct LanesOf<float> {
    typedef F V;
    typedef FI Mask;
    static constexpr int count = NF;
};
template <> struct LanesOf<double> {
    typedef D V;
    typedef DI Mask;
    static constexpr int count = ND;
};

constexpr double INFINITE = __builtin_inf();
constexpr int RUN = 8; // of lanes, which are added up in their own precision before the sum is widened
constexpr float FLOAT_DEPTH = -80;    // of z − max z, below which float lanes take it for no more than that,
constexpr float FLOAT_MOST = 1e5f;    // with a largest logit up to here
constexpr double FLOAT_REST = 1e-18;  // and with others that weigh so much more than these
constexpr double DOUBLE_DEPTH = -708; // below which e^d is no normal number

INLINE D widened_sum(D v) { return v; }

// A sum in double of numbers that are added in runs.
template <class V> struct Total {
    V part{};
    D whole{};

    INLINE void settle() {
        whole += widened_sum(part);
        part = V{};
    }
    INLINE double value() const { return sum(whole); }
};

// As many of a row's numbers as are left of it, and `beyond` in the lanes after them.
template <class T> INLINE typename LanesOf<T>::V load_before(const T* from, int64_t left, T beyond) {
    typedef typename LanesOf<T>::Mask Mask;
    if (left >= LanesOf<T>::count) return load(from);
    return counted(Mask{}, 0, left, -1) ? load_part(from, left) : splat(beyond);
}

// Adds a row to sums, with `blank`, which adds nothing, in the place of one class. Meanwhile the next row is called
// into the cache: else memory would rest during the arithmetic.
template <class T, class Sums>
INLINE void add_others(Sums& sums, const T* row, int64_t classes, int64_t left_out, T blank, const T* next) {
    typedef typename LanesOf<T>::V V;
    typedef typename LanesOf<T>::Mask Mask;
    constexpr int N = LanesOf<T>::count;
    const int64_t group = left_out / N * N;
    for (int64_t first = 0; first < classes; first += RUN * N) {
        const int64_t end = first + RUN * N < classes ? first + RUN * N : classes;
        for (int64_t k = first; k < end; k += N) {
            __builtin_prefetch(next + k);
            V v = load_before(row + k, classes - k, blank);
            if (k == group) v = counted(Mask{}, k, classes, left_out) ? v : splat(blank);
            sums.add(v);
        }
        sums.settle();
    }
}

// The largest but for NaN; −∞ if there is none.
template <class T> INLINE T largest_of(const T* row, int64_t classes) {
    typedef typename LanesOf<T>::V V;
    constexpr int N = LanesOf<T>::count, WAYS = 4; // so that a comparison need not wait for the one before it
    V top[WAYS];
    for (auto& v : top) v = splat(T(-INFINITE));
    int64_t k = 0;
    for (; k + WAYS * N <= classes; k += WAYS * N)
        for (int i = 0; i < WAYS; ++i) top[i] = larger(load(row + k + i * N), top[i]);
    for (; k < classes; k += N) top[0] = larger(load_before(row + k, classes - k, T(-INFINITE)), top[0]);
    return largest(larger(larger(top[0], top[1]), larger(top[2], top[3])));
}

// The first class that has this value, which one of them must have.
template <class T> INLINE int64_t first_with(const T* row, int64_t classes, T value) {
    constexpr int N = LanesOf<T>::count;
    int64_t k = 0;
    for (; k + 4 * N <= classes; k += 4 * N) {
        const T* at = row + k;
        if (any((load(at) == value) | (load(at + N) == value) | (load(at + 2 * N) == value) | (load(at + 3 * N) == value)))
            break;
    }
    while (k + N <= classes && !any(load(row + k) == value)) k += N;
    while (k < classes - 1 && row[k] != value) ++k;
    return k;
}

// Number of classes that come before the target: above it, or level with it and of smaller id.
template <class T> INLINE int64_t rank_of(const T* row, int64_t classes, int64_t target) {
    typedef typename LanesOf<T>::V V;
    typedef typename LanesOf<T>::Mask Mask;
    constexpr int N = LanesOf<T>::count;
    constexpr T lowest = T(-INFINITE);
    const V own = splat(row[target]);
    const int64_t group = target / N * N;
    Mask before{};
    for (int64_t k = 0; k < group; k += N) before -= load(row + k) >= own;
    V v = load_before(row + group, classes - group, lowest);
    before -= (v > own) | ((v == own) & counted(Mask{}, group, target, -1));
    for (int64_t k = group + N; k < classes; k += N) before -= load_before(row + k, classes - k, lowest) > own;
    return sum(before);
}

INLINE F plogp(F p) { return p * logarithm(larger(p, splat(1.17549435e-38f))); } // 0 ln 0 is 0
INLINE D plogp(D p) { return p * logarithm(larger(p, splat(2.2250738585072014e-308))); }

template <class V, bool with_entropy> struct ProbSums {
    V top{}, lowest{};
    Total<V> total, squares, entropy;

    INLINE void add(V p) {
        top = larger(p, top);
        lowest = smaller(p, lowest);
        total.part += p; // not a number, or infinite, if one of them is
        squares.part += p * p;
        if (with_entropy) entropy.part -= plogp(p);
    }
    INLINE void settle() {
        total.settle();
        squares.settle();
        if (with_entropy) entropy.settle();
    }
};

// False if these are no probabilities.
template <class T, bool with_entropy>
INLINE bool read_probs(const T* p, const T* next, int64_t classes, int64_t target, const Readings& out, int64_t row) {
    ProbSums<typename LanesOf<T>::V, with_entropy> sums;
    add_others(sums, p, classes, target, T(0), next);
    const T own = p[target], other = largest(sums.top), top = own > other ? own : other;
    const double off = sums.total.value() + double(own) - 1;
    if (!(std::fabs(off) <= out.sum_tolerance && own >= 0 && top <= 1) || any(sums.lowest < T(0))) return false;
    const int64_t best = own > other ? target : first_with(p, classes, top);
    out.best[row] = best;
    out.rank[row] = best == target ? 0 : rank_of(p, classes, target);
    out.top[row] = double(top);
    out.own[row] = double(own);
    out.squares[row] = sums.squares.value();
    const double own_entropy = with_entropy && own > 0 ? -double(own) * std::log(double(own)) : 0;
    out.doubt[row] = with_entropy ? sums.entropy.value() + own_entropy : __builtin_nan("");
    return true;
}

// Of d = z − max z: Σe^d, Σe^2d and Σd·e^d; not numbers if one z is none.
template <bool with_entropy> struct FloatPowers {
    F top, floor;
    Total<F> rest, squares, depths;

    INLINE explicit FloatPowers(float largest) : top(splat(largest)), floor(splat(largest + FLOAT_DEPTH)) {}

    INLINE void add(F z) {
        z = larger(floor, z);
        F d = z - top, from_z = z - d; // and what rounding took from the difference: it would show in e^d
        F lost = (z - (d + from_z)) + (from_z - top), power, growth;
        exponential_of<true>(d, lost, power, growth);
        rest.part += power;
        squares.part += power * power;
        if (with_entropy) depths.part += d * power;
    }
    INLINE void settle() {
        rest.settle();
        squares.settle();
        if (with_entropy) depths.settle();
    }
};

template <bool with_entropy> struct DoublePowers {
    D top;
    Total<D> rest, squares, depths;

    INLINE explicit DoublePowers(double largest) : top(splat(largest)) {}

    INLINE void add(D z) {
        D d = larger(splat(DOUBLE_DEPTH), z - top), power = keep(d != DOUBLE_DEPTH, exponential(d));
        rest.part += power;
        squares.part += power * power;
        if (with_entropy) depths.part += d * power;
    }
    INLINE void add(F z) {
        add(low_half(z));
        add(high_half(z));
    }
    INLINE void settle() {
        rest.settle();
        squares.settle();
        if (with_entropy) depths.settle();
    }
};

// False if one of them is not a number.
template <class Powers> INLINE bool put_powers(const Powers& powers, bool with_entropy, const Readings& out, int64_t row) {
    const double rest = powers.rest.value();
    out.rest[row] = rest;
    out.squares[row] = powers.squares.value();
    out.doubt[row] = with_entropy ? powers.depths.value() : __builtin_nan("");
    return rest == rest;
}

template <bool with_entropy, class T>
INLINE bool read_powers(const T* z, const T* next, int64_t classes, int64_t best, const Readings& out, int64_t row) {
    if constexpr (sizeof(T) == sizeof(float)) {
        FloatPowers<with_entropy> powers(z[best]);
        add_others(powers, z, classes, best, T(-INFINITE), next);
        const bool are_numbers = put_powers(powers, with_entropy, out, row);
        if (!are_numbers || (out.rest[row] > FLOAT_REST && std::fabs(z[best]) < FLOAT_MOST)) return are_numbers;
    }
    DoublePowers<with_entropy> powers(double(z[best]));
    add_others(powers, z, classes, best, T(-INFINITE), next);
    return put_powers(powers, with_entropy, out, row);
}

// False if these are no logits.
template <class T, bool with_entropy>
INLINE bool read_logits(const T* z, const T* next, int64_t classes, int64_t target, const Readings& out, int64_t row) {
    const T top = largest_of(z, classes), own = z[target];
    if (!(std::fabs(top) < T(INFINITE))) return false;
    const int64_t best = first_with(z, classes, top);
    out.best[row] = best;
    out.rank[row] = best == target ? 0 : rank_of(z, classes, target);
    out.top[row] = double(top);
    out.own[row] = double(own);
    out.share[row] = best == target ? 0 : std::exp(double(own) - double(top));
    return read_powers<with_entropy>(z, next, classes, best, out, row);
}

template <class T, bool with_entropy>
bool read_each(const Inputs& p, const Readings& out, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const T* from = reinterpret_cast<const T*>(p.logits.row(row, 1));
        const T* next = reinterpret_cast<const T*>(p.logits.row(row + 1 < last ? row + 1 : row, 1));
        const int64_t target = p.ids[row];
        if (target < 0 || target >= p.classes) return false;
        bool done = out.of_probs ? read_probs<T, with_entropy>(from, next, p.classes, target, out, row)
                                 : read_logits<T, with_entropy>(from, next, p.classes, target, out, row);
        if (!done) return false;
    }
    return true;
}

// False if a row holds what it may not. Rows must be contiguous, of single or double precision.
inline bool read_rows(const Inputs& p, const Readings& out, int64_t first, int64_t last) {
    if (p.logits.kind == Kind::float64)
        return out.with_entropy ? read_each<double, true>(p, out, first, last) : read_each<double, false>(p, out, first, last);
    return out.with_entropy ? read_each<float, true>(p, out, first, last) : read_each<float, false>(p, out, first, last);
}
