// Rows in the type and order that the lanes want: in place where they lie so, copied where they do not.

constexpr int BLOCK = 16; // rows that are visited together

INLINE double largest_of(Kind kind) {
    return kind == Kind::float64    ? 1.7976931348623157e308
           : kind == Kind::float32  ? 3.4028234663852886e38
           : kind == Kind::bfloat16 ? 3.3895313892515355e38
                                    : 65504.;
}

INLINE float value_of(const float* from) { return *from; }
INLINE double value_of(const double* from) { return *from; }

struct BFloat16 {
    uint16_t bits;
};
INLINE float value_of(const BFloat16* from) {
    uint32_t bits = uint32_t(from->bits) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

struct Float16 {
    uint16_t bits;
};
// Infinity and NaN come out as numbers from 65536 on, beyond what any row may hold.
INLINE float value_of(const Float16* from) {
    uint32_t bits = uint32_t(from->bits & 0x7fff) << 13;
    float value;
    memcpy(&value, &bits, 4);
    value *= 5.192296858534828e33f; // 2¹¹²: exact, subnormals included
    return from->bits & 0x8000 ? -value : value;
}

INLINE void put(float* to, double value) { *to = float(value); }
INLINE void put(double* to, double value) { *to = value; }
INLINE void put(BFloat16* to, double value) {
    float narrow = float(value);
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to->bits = uint16_t(narrow == narrow ? rounded : 0x7fc0);
}
INLINE void put(Float16* to, double value) {
    float narrow = float(value);
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    uint32_t sign = bits & 0x80000000, size = bits ^ sign;
    uint32_t normal = (size + 0xc8000fff + (size >> 13 & 1)) >> 13;
    float shifted;
    memcpy(&shifted, &size, 4);
    shifted += 0.5f; // its last bit is then a half's smallest step
    uint32_t subnormal;
    memcpy(&subnormal, &shifted, 4);
    subnormal -= 0x3f000000;
    uint32_t half = size < 0x38800000 ? subnormal : size < 0x47800000 ? normal : size > 0x7f800000 ? 0x7e00 : 0x7c00;
    to->bits = uint16_t(half | sign >> 16);
}

template <class From, class T>
INLINE void copy_in(const From* from, int64_t stride, int64_t classes, T* to) {
    if (stride == 1)
        for (int64_t k = 0; k < classes; ++k) to[k] = T(value_of(from + k));
    else
        for (int64_t k = 0; k < classes; ++k) to[k] = T(value_of(from + k * stride));
}
template <class To, class T>
INLINE void copy_out(To* to, int64_t stride, int64_t classes, const T* from) {
    if (stride == 1)
        for (int64_t k = 0; k < classes; ++k) put(to + k, from[k]);
    else
        for (int64_t k = 0; k < classes; ++k) put(to + k * stride, from[k]);
}

// Rows that are neighbours in memory travel together, a cache line at a time.
template <class From, class T>
INLINE void copy_in_adjacent(const From* from, int64_t stride, int64_t classes, int rows, T* to, int64_t pitch) {
    for (int64_t k = 0; k < classes; ++k)
        for (int i = 0; i < rows; ++i) to[i * pitch + k] = T(value_of(from + k * stride + i));
}
template <class To, class T>
INLINE void copy_out_adjacent(To* to, int64_t stride, int64_t classes, int rows, const T* from, int64_t pitch) {
    for (int64_t k = 0; k < classes; ++k)
        for (int i = 0; i < rows; ++i) put(to + k * stride + i, from[i * pitch + k]);
}

INLINE bool are_adjacent(const Strided& s, int64_t first, int rows, int64_t inner) {
    return rows > 1 && s.inner_stride == 1 && s.class_stride != 1 && first / inner == (first + rows - 1) / inner;
}

template <class T> constexpr Kind kind_of = Kind::float64;
template <> constexpr Kind kind_of<float> = Kind::float32;

template <class T> INLINE bool in_place(const Strided& s) { return s.kind == kind_of<T> && s.class_stride == 1; }

template <class From, class T>
void read_as(const Strided& s, int64_t first, int rows, int64_t inner, int64_t classes, T* to, int64_t pitch) {
    if (are_adjacent(s, first, rows, inner)) {
        auto from = reinterpret_cast<const From*>(s.row(first, inner));
        copy_in_adjacent(from, s.class_stride, classes, rows, to, pitch);
    } else {
        for (int i = 0; i < rows; ++i) {
            auto from = reinterpret_cast<const From*>(s.row(first + i, inner));
            copy_in(from, s.class_stride, classes, to + i * pitch);
        }
    }
}

template <class T>
void read(const Strided& s, int64_t first, int rows, int64_t inner, int64_t classes, T* to, int64_t pitch) {
    switch (s.kind) {
    case Kind::float32: return read_as<float>(s, first, rows, inner, classes, to, pitch);
    case Kind::float64: return read_as<double>(s, first, rows, inner, classes, to, pitch);
    case Kind::bfloat16: return read_as<BFloat16>(s, first, rows, inner, classes, to, pitch);
    case Kind::float16: return read_as<Float16>(s, first, rows, inner, classes, to, pitch);
    }
}

template <class To, class T>
void write_as(const Strided& s, int64_t first, int rows, int64_t inner, int64_t classes, const T* from, int64_t pitch) {
    if (are_adjacent(s, first, rows, inner)) {
        auto to = reinterpret_cast<To*>(s.row(first, inner));
        copy_out_adjacent(to, s.class_stride, classes, rows, from, pitch);
    } else {
        for (int i = 0; i < rows; ++i) {
            auto to = reinterpret_cast<To*>(s.row(first + i, inner));
            copy_out(to, s.class_stride, classes, from + i * pitch);
        }
    }
}

template <class T>
void write(const Strided& s, int64_t first, int rows, int64_t inner, int64_t classes, const T* from, int64_t pitch) {
    switch (s.kind) {
    case Kind::float32: return write_as<float>(s, first, rows, inner, classes, from, pitch);
    case Kind::float64: return write_as<double>(s, first, rows, inner, classes, from, pitch);
    case Kind::bfloat16: return write_as<BFloat16>(s, first, rows, inner, classes, from, pitch);
    case Kind::float16: return write_as<Float16>(s, first, rows, inner, classes, from, pitch);
    }
}

INLINE int64_t pitch_of(int64_t classes) { return (classes + 31) / 16 * 16; }

// Rows of a tensor as the lanes want them.
template <class T> struct Source {
    const Strided* tensor;
    T* scratch;
    int64_t inner, classes, pitch, first = 0;
    bool direct, together;

    Source(const Strided& s, const Inputs& p)
        : tensor(&s), scratch(nullptr), inner(p.inner), classes(p.classes), pitch(pitch_of(p.classes)),
          direct(in_place<T>(s)), together(!direct && s.class_stride != 1 && s.inner_stride == 1 && inner > 1) {}

    int64_t scratch_size() const { return direct ? 0 : together ? BLOCK * pitch : pitch; }

    void begin(int64_t row, int rows) {
        first = row;
        if (together) read(*tensor, row, rows, inner, classes, scratch, pitch);
    }
    // Valid until the next call.
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
