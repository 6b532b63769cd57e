// A range of rows, from the memory of the caller to the memory of the caller. Included once for every
// instruction set.

INLINE int64_t pitch_of(int64_t classes) { return (classes + 31) / 16 * 16; }

// Rows of a tensor as the lanes want them.
template <class T> struct Source {
    const Strided* tensor;
    T* scratch;
    int64_t inner, classes, pitch, first = 0;
    bool direct, together;

    Source(const Strided& s, const Problem& p)
        : tensor(&s), scratch(nullptr), inner(p.inner), classes(p.classes), pitch(pitch_of(p.classes)),
          direct(in_place<T>(s)), together(!direct && s.class_stride != 1 && s.inner_stride == 1 && inner > 1) {}

    int64_t scratch_size() const { return direct ? 0 : together ? BLOCK * pitch : pitch; }

    void begin(int64_t row, int rows) {
        first = row;
        if (together) read(*tensor, row, rows, inner, classes, scratch, pitch);
    }
    // Valid until the next row is asked for.
    T* row(int i) {
        if (direct) return reinterpret_cast<T*>(tensor->row(first + i, inner));
        if (together) return scratch + i * pitch;
        read(*tensor, first + i, 1, inner, classes, scratch, pitch);
        return scratch;
    }
};

// The same for writing: fill row(i), then end_row(i), then end() after the last.
template <class T> struct Sink : Source<T> {
    using Source<T>::Source;

    void begin(int64_t row) { this->first = row; }
    T* row(int i) {
        if (this->direct) return reinterpret_cast<T*>(this->tensor->row(this->first + i, this->inner));
        return this->together ? this->scratch + i * this->pitch : this->scratch;
    }
    void end_row(int i) {
        if (!this->direct && !this->together)
            write(*this->tensor, this->first + i, 1, this->inner, this->classes, this->scratch, this->pitch);
    }
    void end(int rows) {
        if (this->together)
            write(*this->tensor, this->first, rows, this->inner, this->classes, this->scratch, this->pitch);
    }
};

INLINE double largest_of(Kind kind) {
    return kind == Kind::float64    ? 1.7976931348623157e308
           : kind == Kind::float32  ? 3.4028234663852886e38
           : kind == Kind::bfloat16 ? 3.3895313892515355e38
                                    : 65504.;
}

// Everything one thread needs for rows in double lanes.
class ExactRows {
    const Problem& p;
    Source<double> logits, counts, prior;
    double *own_logits, *own_counts, *own_prior;
    bool uneven, knows_normaliser = false;
    double normaliser = 0;

public:
    static int64_t scratch_size(const Problem& p) {
        int64_t size = 3 * pitch_of(p.classes) + Source<double>(p.logits, p).scratch_size();
        if (p.counts) size += Source<double>(p.counts, p).scratch_size();
        if (p.prior) size += Source<double>(p.prior, p).scratch_size();
        return size;
    }

    ExactRows(const Problem& problem, double* scratch)
        : p(problem), logits(p.logits, p), counts(p.counts, p), prior(p.prior, p),
          uneven(p.prior && (p.prior.outer_stride != 0 || (p.inner > 1 && p.prior.inner_stride != 0))) {
        const int64_t pitch = pitch_of(p.classes);
        own_logits = scratch;
        own_counts = scratch + pitch;
        own_prior = scratch + 2 * pitch;
        logits.scratch = scratch + 3 * pitch;
        counts.scratch = logits.scratch + logits.scratch_size();
        prior.scratch = counts.scratch + (p.counts ? counts.scratch_size() : 0);
        for (int64_t k = 0; k < p.classes; ++k) own_counts[k] = 0, own_prior[k] = p.prior_number;
    }

    void begin(int64_t row, int rows) {
        logits.begin(row, rows);
        if (p.counts) counts.begin(row, rows);
        if (p.prior) prior.begin(row, rows);
    }

    // The row's numbers; false if some are not what they must be. `z` where the logits are at hand already.
    bool open(int64_t index, int i, const float* z, ExactRow& row) {
        row.kl_weight = p.row_kl_weight ? p.row_kl_weight[index] : p.kl_weight;
        if (z) {
            for (int64_t k = 0; k < p.classes; ++k) own_logits[k] = z[k];
            row.z = own_logits;
        } else {
            row.z = logits.row(i);
        }
        row.counts = own_counts;
        if (p.ids) own_counts[p.ids[index]] = 1;
        else if (!open_counts(i, row)) return false;
        row.prior = own_prior;
        if (p.prior) {
            row.prior = prior.row(i);
            if (!all_within(row.prior, p.classes, EXACT_SMALLEST, EXACT_LARGEST)) return false;
        }
        return true;
    }

    void close(int64_t index) {
        if (p.ids) own_counts[p.ids[index]] = 0;
    }

    double log_normaliser_of(const ExactRow& row) {
        if (!p.prior) return p.log_normaliser;
        if (uneven || !knows_normaliser) normaliser = log_normaliser(row.prior, p.classes);
        knows_normaliser = true;
        return normaliser;
    }

private:
    // A class weight multiplies its votes, and λ by their mean weight.
    bool open_counts(int i, ExactRow& row) {
        const double* from = counts.row(i);
        row.counts = from;
        if (!all_within(from, p.classes, 0, EXACT_LARGEST)) return false;
        if (!p.class_weight) return true;
        double votes = 0, weighted = 0;
        for (int64_t k = 0; k < p.classes; ++k) {
            votes += from[k];
            weighted += own_counts[k] = from[k] * p.class_weight[k];
        }
        if (votes > 0) row.kl_weight *= weighted / votes;
        row.counts = own_counts;
        return true;
    }
};

// Few enough rows for what is kept of them to stay in cache; many where rows are short or lie side by side.
inline int rows_at_once(const Problem& p) {
    bool beside = p.logits.class_stride != 1 && p.inner > 1;
    int64_t fitting = 2048 / p.classes;
    return beside ? BLOCK : int(fitting < 1 ? 1 : fitting > BLOCK ? BLOCK : fitting);
}

// Everything one thread needs, and its walk over the rows.
class Worker {
    const Problem& p;
    const Output& out;
    const Plain constants;
    const int64_t pitch;
    const double limit;
    const bool plain, wants_slopes;
    const int block_rows;
    Block block;
    bool is_exact[BLOCK];
    ExactRows exact;
    Source<float> logits;
    Sink<float> plain_to;
    Sink<double> exact_to;
    double *alpha, *wide;
    float* kept;

public:
    static int64_t scratch_size(const Problem& p) {
        int64_t pitch = pitch_of(p.classes), rows = rows_at_once(p);
        return ExactRows::scratch_size(p) + (rows + 1 + BLOCK + 2 * rows) * pitch;
    }

    Worker(const Problem& problem, const Output& output, double* scratch)
        : p(problem), out(output), constants(p), pitch(pitch_of(p.classes)), limit(largest_of(out.gradient.kind)),
          plain(is_plain(p)), wants_slopes(bool(out.gradient)), block_rows(rows_at_once(p)), exact(p, scratch),
          logits(p.logits, p), plain_to(out.gradient, p), exact_to(out.gradient, p) {
        alpha = scratch + ExactRows::scratch_size(p);
        wide = alpha + block_rows * pitch;
        exact_to.scratch = wide + pitch;
        logits.scratch = reinterpret_cast<float*>(exact_to.scratch); // one or the other is in use
        plain_to.scratch = logits.scratch + BLOCK * pitch;
        kept = reinterpret_cast<float*>(exact_to.scratch + BLOCK * pitch);
    }

    // Rows from `first` to `last`. False if one of them is not for this kernel.
    bool run(int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row += block_rows) {
            int rows = int(last - row < block_rows ? last - row : block_rows);
            plain ? logits.begin(row, rows) : exact.begin(row, rows);
            if (!sums(row, rows)) return false;
            finish(block, rows, out.largest_loss, wants_slopes);
            for (int i = 0; i < rows; ++i) out.row_loss[row + i] = p.ignored(row + i) ? 0 : block.loss[i];
            if (wants_slopes) plain ? plain_slopes(row, rows) : exact_slopes(row, rows);
        }
        return true;
    }

private:
    bool sums(int64_t row, int rows) {
        for (int i = 0; i < (rows + ND - 1) / ND * ND; ++i) {
            block.clear(i);
            if (i >= rows || p.ignored(row + i)) continue;
            const float* z = plain ? logits.row(i) : nullptr;
            is_exact[i] = !plain || !plain_row(row + i, i, z);
            if (is_exact[i] && !exact_row(row + i, i, z)) return false;
        }
        return true;
    }

    bool plain_row(int64_t index, int i, const float* z) {
        block.log_normaliser[i] = p.log_normaliser;
        const Kept at(kept + i * Kept::size(pitch), pitch);
        const int64_t label = p.ids[index];
        if (!wants_slopes) return plain_sums<false>(z, p.classes, label, constants, at, block, i);
        if (!(std::fabs(out.row_scale[index]) <= PLAIN_SCALE)) return false;
        return plain_sums<true>(z, p.classes, label, constants, at, block, i);
    }

    bool exact_row(int64_t index, int i, const float* z) {
        ExactRow row;
        bool done = exact.open(index, i, z, row) && exact_sums(row, p.classes, alpha + i * pitch, block, i);
        if (done) block.log_normaliser[i] = exact.log_normaliser_of(row);
        exact.close(index);
        return done;
    }

    void exact_row_slopes(int64_t index, int i, const float* z, double* to) {
        ExactRow row;
        exact.open(index, i, z, row);
        exact_gradient(row, p.classes, alpha + i * pitch, block, i, out.row_scale[index], limit, to);
        exact.close(index);
    }

    void exact_slopes(int64_t row, int rows) {
        exact_to.begin(row);
        for (int i = 0; i < rows; ++i) {
            double* to = exact_to.row(i);
            p.ignored(row + i) ? (void)std::fill_n(to, p.classes, 0.) : exact_row_slopes(row + i, i, nullptr, to);
            exact_to.end_row(i);
        }
        exact_to.end(rows);
    }

    void plain_slopes(int64_t row, int rows) {
        plain_to.begin(row);
        for (int i = 0; i < rows; ++i) {
            float* to = plain_to.row(i);
            if (p.ignored(row + i)) {
                std::fill_n(to, p.classes, 0.f);
            } else if (is_exact[i]) {
                exact_row_slopes(row + i, i, logits.row(i), wide);
                for (int64_t k = 0; k < p.classes; ++k) to[k] = float(wide[k]);
            } else {
                const Kept at(kept + i * Kept::size(pitch), pitch);
                const double scale = out.row_scale[row + i];
                plain_gradient(at, p.classes, p.ids[row + i], constants, block, i, scale, limit, to);
            }
            plain_to.end_row(i);
        }
        plain_to.end(rows);
    }
};

inline int64_t scratch_size(const Problem& p) { return Worker::scratch_size(p); }

inline bool run(const Problem& p, const Output& out, int64_t first, int64_t last, double* scratch) {
    return Worker(p, out, scratch).run(first, last);
}
