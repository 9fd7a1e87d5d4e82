// Gradients between the ranks of one host: each rank writes its own to memory that all of them see,
// and sums what all have written. Bound by memory, so each value is read and written once.

#include <sched.h>
#include <time.h>

#include <atomic>

#include "bfloat16.h"

// Beside that of BF16, which one in the namespace would hide.
static inline float widened(float value) { return value; }

namespace {

constexpr int64_t kChunk = 16384;   // values that a thread takes at a time; they stay in its cache
constexpr int kSpins = 2000;        // reads of a flag before the processor is yielded
constexpr int64_t kNanoseconds = 1000000000;

template <typename Value>
void sum(const Value* const* parts, int64_t count, float* out, int64_t size, int32_t threads) {
    over_chunks<kChunk>(size, threads, [=](int64_t begin, int64_t end) {
        // A chunk of the sum stays in the cache while all ranks' parts are added to it.
        const Value* first = parts[0];
        for (int64_t i = begin; i < end; i++) out[i] = widened(first[i]);
        for (int64_t part = 1; part < count; part++) {
            const Value* next = parts[part];
            for (int64_t i = begin; i < end; i++) out[i] += widened(next[i]);
        }
    });
}

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * kNanoseconds + time.tv_nsec;
}

}  // namespace

extern "C" {

void write_rounded(const float* values, Bfloat16* out, int64_t size, float scale, int32_t threads) {
    over_chunks<kChunk>(size, threads, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) out[i] = rounded(values[i] * scale);
    });
}

void write_floats(const float* values, float* out, int64_t size, float scale, int32_t threads) {
    over_chunks<kChunk>(size, threads, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) out[i] = values[i] * scale;
    });
}

// The parts are added in their order, so that all ranks have the same sum to the last bit.
void sum_rounded(const Bfloat16* const* parts, int64_t count, float* out, int64_t size, int32_t threads) {
    sum(parts, count, out, size, threads);
}

void sum_floats(const float* const* parts, int64_t count, float* out, int64_t size, int32_t threads) {
    sum(parts, count, out, size, threads);
}

// Announce that everything written before is complete. Release here and acquire in `flags_are_up` order the
// gradients' ordinary stores and loads around the flag.
void raise_flag(int64_t* flag, int64_t value) {
    reinterpret_cast<std::atomic<int64_t>*>(flag)->store(value, std::memory_order_release);
}

// Whether all flags have reached the value; with `seconds` of 0 without waiting. Spins first, since ranks arrive
// within microseconds of each other, then yields: another rank may need this very core.
int32_t flags_are_up(const int64_t* const* flags, int64_t count, int64_t value, double seconds) {
    const int64_t end = now() + static_cast<int64_t>(seconds * kNanoseconds);
    for (int64_t number = 0; number < count; number++) {
        const auto* flag = reinterpret_cast<const std::atomic<int64_t>*>(flags[number]);
        for (int spins = 0; flag->load(std::memory_order_acquire) < value; spins++) {
            if (seconds == 0) return 0;
            if (spins < kSpins) continue;
            if (now() > end) return 0;
            sched_yield();
        }
    }
    return 1;
}

}  // extern "C"
