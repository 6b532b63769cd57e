// Plain rows one by one, their classes in the lanes: for rows that are contiguous and not short. Included once for
// every instruction set.

template <bool unit_prior, bool keeps>
INLINE void add_classes(PlainSums& sums, const float* z, int64_t from, int64_t to, const Plain& plain, const Kept& kept) {
    int64_t k = from;
    while (k < to) {
        int64_t room = sums.room(), end = k + room * NF < to ? k + room * NF : to;
        sums.added(int((end - k) / NF));
        for (; k + NF < end; k += 2 * NF) {
            sums.add<unit_prior, false, keeps>(load(z + k), plain, FI{}, kept, k);
            sums.add<unit_prior, false, keeps>(load(z + k + NF), plain, FI{}, kept, k + NF);
            sums.settle();
        }
        if (k < end) {
            sums.add<unit_prior, false, keeps>(load(z + k), plain, FI{}, kept, k);
            sums.settle();
            k += NF;
        }
        if (!sums.room()) sums.flush();
    }
}

template <bool unit_prior, bool keeps>
INLINE void add_some_classes(PlainSums& sums, F z, int64_t k, int64_t classes, int64_t label, const Plain& plain,
                             const Kept& kept) {
    sums.add<unit_prior, true, keeps>(z, plain, counted(FI{}, k, classes, label), kept, k, classes - k);
    sums.settle();
    sums.added(1);
    if (!sums.room()) sums.flush();
}

template <bool unit_prior, bool keeps>
INLINE bool row_sums(const float* z, int64_t classes, int64_t label, const Plain& plain, const Kept& kept, Block& block,
                     int i) {
    PlainSums sums;
    int64_t whole = classes / NF * NF, beside = label / NF * NF;
    add_classes<unit_prior, keeps>(sums, z, 0, beside < whole ? beside : whole, plain, kept);
    if (beside < whole) {
        add_some_classes<unit_prior, keeps>(sums, load(z + beside), beside, classes, label, plain, kept);
        add_classes<unit_prior, keeps>(sums, z, beside + NF, whole, plain, kept);
    }
    if (whole < classes) {
        F part = load_part(z + whole, classes - whole);
        add_some_classes<unit_prior, keeps>(sums, part, whole, classes, label, plain, kept);
    }
    sums.flush();
    double body = sum(sums.whole_body(plain, 0) + sums.whole_body(plain, 1));
    double mantissa = product(low_half(sums.mantissa) * high_half(sums.mantissa));
    double rest = sum(sums.alpha[0] + sums.alpha[1]), excess = sum(sums.excess[0] + sums.excess[1]);
    return enter_plain(block, i, plain, classes, z[label], rest, excess, body, mantissa);
}

inline bool row_sums(const float* z, int64_t classes, int64_t label, const Plain& plain, const Kept& kept, bool keeps,
                     Block& block, int i) {
    if (plain.prior == 1)
        return keeps ? row_sums<true, true>(z, classes, label, plain, kept, block, i)
                     : row_sums<true, false>(z, classes, label, plain, kept, block, i);
    return keeps ? row_sums<false, true>(z, classes, label, plain, kept, block, i)
                 : row_sums<false, false>(z, classes, label, plain, kept, block, i);
}

template <bool near>
INLINE F row_slope(const Kept& kept, int64_t k, int64_t left, F lead, F pull, F kl_weight, F offset) {
    F u = load_up_to(kept.u + k, left), excess = load(kept.excess + k);
    return near ? near_slope(u, excess, lead, pull, kl_weight)
                : far_slope(u, load(kept.alpha + k), excess, pull, kl_weight, offset);
}

template <bool near>
INLINE void row_slopes(const Kept& kept, int64_t classes, double lead, double pull, double kl_weight, double offset,
                       float* to) {
    F leads = splat(float(lead)), pulls = splat(float(pull));
    F weights = splat(float(kl_weight)), offsets = splat(float(offset));
    int64_t whole = classes / NF * NF;
    for (int64_t k = 0; k < whole; k += NF)
        store(to + k, row_slope<near>(kept, k, NF, leads, pulls, weights, offsets));
    if (int64_t left = classes - whole)
        store_part(to + whole, left, row_slope<near>(kept, whole, left, leads, pulls, weights, offsets));
}

// The gradient of a row, times `scale`; slopes saturate at `limit`.
inline void row_gradient(const Kept& kept, int64_t classes, int64_t label, const Plain& plain, const Block& block, int i,
                         double scale, double limit, float* to) {
    double lead = plain.prior * block.lead[i] * scale, pull = block.pull[i] * scale;
    double kl_weight = plain.kl_weight * scale, offset = plain.prior * kl_weight;
    if (std::fabs(block.lead[i]) < plain.kl_weight)
        row_slopes<true>(kept, classes, lead, pull, kl_weight, offset, to);
    else
        row_slopes<false>(kept, classes, lead, pull, kl_weight, offset, to);
    to[label] = float(scale * block.apart[i]);
    if (limit < 1e30) { // only half precision has a limit that plain rows can reach
        float most = float(limit * std::fabs(scale));
        for (int64_t k = 0; k < classes; ++k) to[k] = to[k] > most ? most : to[k] < -most ? -most : to[k];
    }
}
