// The computation compiled for every instruction set that this processor family may have, and the best of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "coefficients.h"
#include "problem.h"

#define INLINE inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__clang__)
#define TARGET_WIDE \
    _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512dq,avx512bw,avx512vl,avx2,fma\"))), apply_to=function)")
#define TARGET_MIDDLE _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to=function)")
#define TARGET_END _Pragma("clang attribute pop")
#elif defined(__x86_64__)
#define TARGET_WIDE \
    _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512dq,avx512bw,avx512vl,avx2,fma\")")
#define TARGET_MIDDLE _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define TARGET_END _Pragma("GCC pop_options")
#endif

namespace beliefmatch {

#if defined(__x86_64__)
namespace avx512 {
TARGET_WIDE
#define LANE_BYTES 64
#include "isa.h"
#undef LANE_BYTES
TARGET_END
} // namespace avx512

namespace avx2 {
TARGET_MIDDLE
#define LANE_BYTES 32
#include "isa.h"
#undef LANE_BYTES
TARGET_END
} // namespace avx2
#endif

namespace baseline { // SSE2 or NEON
#define LANE_BYTES 16
#include "isa.h"
#undef LANE_BYTES
} // namespace baseline

struct InstructionSet {
    const char* name;
    bool (*supported)();
    int64_t (*scratch_size)(const Problem&);
    bool (*run)(const Problem&, const Output&, int64_t, int64_t, double*);
    int64_t (*measure_scratch_size)(const Problem&);
    bool (*measure)(Measure, const Problem&, int64_t, int64_t, double*, double*);
    int64_t (*divergence_scratch_size)(const Problem&, const DivergenceOutput&);
    bool (*divergence)(const Problem&, const DivergenceOutput&, int64_t, int64_t, double*);
    int64_t (*variance_scratch_size)(const Problem&, const Strided&);
    bool (*variance)(const Problem&, const Strided&, int64_t, int64_t, double*);
    bool (*read_rows)(const Problem&, const Readings&, int64_t, int64_t);
};

inline bool always() { return true; }
#if defined(__x86_64__)
inline bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#define OF_NAMESPACE(name, supported, space)                                                             \
    {name, supported, space::scratch_size, space::run, space::measure_scratch_size, space::measure, \
     space::divergence_scratch_size, space::divergence, space::variance_scratch_size, space::variance, \
     space::read_rows}

inline const InstructionSet INSTRUCTION_SETS[] = {
#if defined(__x86_64__)
    OF_NAMESPACE("avx512", has_avx512, avx512),
    OF_NAMESPACE("avx2", has_avx2, avx2),
    OF_NAMESPACE("sse2", always, baseline),
#elif defined(__aarch64__)
    OF_NAMESPACE("neon", always, baseline),
#else
    OF_NAMESPACE("generic", always, baseline),
#endif
};
#undef OF_NAMESPACE

} // namespace beliefmatch
