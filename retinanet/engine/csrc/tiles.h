// The tile instructions of AMX, and the same by AVX-512 BF16 and in plain C++ for processors without them.
//
// A tile register holds 16 rows of 64 bytes. `multiply` is TDPBF16PS: for rows m and columns n,
//   c[m][n] += sum over k < 16 of a[m][2k] * b[k][2n] + a[m][2k + 1] * b[k][2n + 1]
// where a [16 × 32] and b [16 × 16 pairs] are BF16 and c [16 × 16] is float32. A kernel is a template
// over `Tiles` and is compiled for all; Intel 64 and IA-32 Architectures Software Developer's
// Manual, volume 1, chapter 18, and volume 2, TDPBF16PS.
#pragma once

#include <type_traits>

#include "bfloat16.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

constexpr int64_t TILE_ROWS = 16;        // of a, b and c; and columns of c
constexpr int64_t TILE_PAIRS = 16;       // of values along the sum
constexpr int64_t TILE_SUM = 32;         // values along the sum
constexpr int64_t TILE_VALUES = 16 * 32;  // BF16 values of a or b

#if defined(__linux__) && defined(__x86_64__)
#define HAS_TILE_INSTRUCTIONS 1

// The processor's own tiles. Each thread calls `begin` first and `end` last: the configuration is a
// thread's, and a tile state that is not released is saved at every context switch. The instructions are
// assembly, so that the file compiles for any target and runs them only where `with_tiles` finds AMX; the
// tile numbers are template arguments because they are part of the instruction.
struct HardwareTiles {
    static void begin() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        asm volatile("ldtilecfg %0" ::"m"(config));
    }

    static void end() { asm volatile("tilerelease" ::: "memory"); }

    template <int tile>
    static inline __attribute__((always_inline)) void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(tile));
    }

    // 16 rows of 64 bytes, `stride` bytes apart.
    template <int tile>
    static inline __attribute__((always_inline)) void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
    }

    template <int tile>
    static inline __attribute__((always_inline)) void store(void* to, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
    }

    template <int c, int a, int b>
    static inline __attribute__((always_inline)) void multiply() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
    }
};

// Ask the kernel that this process may use tiles; Linux refuses by default, as they make signal
// frames larger. Documentation/arch/x86/xstate.rst.
static inline bool tiles_permitted() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
static inline bool tiles_permitted() { return false; }
#endif

#if defined(__AVX512BW__)
#define HAS_VECTOR_TILES 1

// The same by VDPBF16PS, for processors that have it but no tiles: a row of c is a register. a and b
// are read where they were loaded from, which nobody changes before they are multiplied.
struct VectorTiles {
    struct Tile {
        alignas(64) float sums[16][16];
        const char* from;  // none: the sums count
        int64_t stride;
    };

    static Tile* tiles() {
        static thread_local Tile held[8];
        return held;
    }

    static void begin() {}
    static void end() {}

    template <int tile>
    static inline void zero() {
        std::memset(tiles()[tile].sums, 0, sizeof(Tile::sums));
        tiles()[tile].from = nullptr;
    }

    template <int tile>
    static inline void load(const void* from, int64_t stride) {
        tiles()[tile].from = static_cast<const char*>(from);
        tiles()[tile].stride = stride;
    }

    static inline void fill(Tile& tile) {
        if (!tile.from) return;
        for (int64_t row = 0; row < TILE_ROWS; row++) std::memcpy(tile.sums[row], tile.from + row * tile.stride, 64);
        tile.from = nullptr;
    }

    template <int tile>
    static inline void store(void* to, int64_t stride) {
        fill(tiles()[tile]);
        for (int64_t row = 0; row < TILE_ROWS; row++) {
            std::memcpy(static_cast<char*>(to) + row * stride, tiles()[tile].sums[row], 64);
        }
    }

    template <int c, int a, int b>
    static inline void multiply() {
        Tile& result = tiles()[c];
        const Tile &left = tiles()[a], &right = tiles()[b];
        fill(result);
        // All 16 rows of c stay in registers through the loop over pairs. One more register holds b's row; a's
        // pair is broadcast by the instruction itself, from memory.
        __m512 sums[TILE_ROWS];
#pragma GCC unroll 16
        for (int row = 0; row < TILE_ROWS; row++) sums[row] = _mm512_load_ps(result.sums[row]);
        const char* values = left.from;
        const char* pairs = right.from;
        for (int64_t pair = 0; pair < TILE_PAIRS; pair++, values += 4, pairs += right.stride) {
            const __m512i factors = _mm512_loadu_si512(pairs);
#pragma GCC unroll 16
            for (int row = 0; row < TILE_ROWS; row++) {
                asm("vdpbf16ps %2%{1to16%}, %1, %0"
                    : "+v"(sums[row])
                    : "v"(factors), "m"(*reinterpret_cast<const int32_t*>(values + row * left.stride)));
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < TILE_ROWS; row++) _mm512_store_ps(result.sums[row], sums[row]);
    }
};
#endif

// The same in memory, for tests on any processor.
struct EmulatedTiles {
    static unsigned char (&registers())[8][1024] {
        static thread_local unsigned char held[8][1024];
        return held;
    }

    static void begin() {}
    static void end() {}

    template <int tile>
    static void zero() {
        std::memset(registers()[tile], 0, 1024);
    }

    template <int tile>
    static void load(const void* from, int64_t stride) {
        for (int64_t row = 0; row < TILE_ROWS; row++) {
            std::memcpy(registers()[tile] + 64 * row, static_cast<const char*>(from) + row * stride, 64);
        }
    }

    template <int tile>
    static void store(void* to, int64_t stride) {
        for (int64_t row = 0; row < TILE_ROWS; row++) {
            std::memcpy(static_cast<char*>(to) + row * stride, registers()[tile] + 64 * row, 64);
        }
    }

    template <int c, int a, int b>
    static void multiply() {
        float sums[16][16];
        Bfloat16 left[16][32], right[16][32];
        std::memcpy(sums, registers()[c], sizeof sums);
        std::memcpy(left, registers()[a], sizeof left);
        std::memcpy(right, registers()[b], sizeof right);
        for (int row = 0; row < 16; row++) {
            for (int pair = 0; pair < 16; pair++) {
                for (int column = 0; column < 16; column++) {
                    sums[row][column] += widened(left[row][2 * pair]) * widened(right[pair][2 * column]);
                    sums[row][column] += widened(left[row][2 * pair + 1]) * widened(right[pair][2 * column + 1]);
                }
            }
        }
        std::memcpy(registers()[c], sums, sizeof sums);
    }
};

// What computes the instructions, with the numbers of `Tiles` in tile_convolution.py.
enum : int32_t { TILES_OF_AMX, TILES_OF_VECTORS, TILES_EMULATED };

// Calls `compute` with a value of the type that stands for `kind`.
template <typename Compute>
static inline void with_tiles(int32_t kind, const Compute& compute) {
#if defined(HAS_TILE_INSTRUCTIONS)
    if (kind == TILES_OF_AMX) return compute(HardwareTiles{});
#endif
#if defined(HAS_VECTOR_TILES)
    if (kind == TILES_OF_VECTORS) return compute(VectorTiles{});
#endif
    compute(EmulatedTiles{});
}

// Calls `apply` with each of 0 … count - 1 as a constant, which the tile instructions need.
template <int count, typename Apply>
static inline __attribute__((always_inline)) void for_each(Apply apply) {
    if constexpr (count > 0) {
        for_each<count - 1>(apply);
        apply(std::integral_constant<int, count - 1>{});
    }
}

// Begins `count` tiles of sums from tile `first_tile` on: with zeros, or those at `sums`, `apart` values from
// each other, whose rows are `stride` bytes apart.
template <typename Tiles, int count, int first_tile = 0>
static inline __attribute__((always_inline)) void begin_sums(
    const float* sums, bool from_zero, int64_t apart = TILE_ROWS * TILE_ROWS, int64_t stride = 64) {
    for_each<count>([&](auto tile) __attribute__((always_inline)) {
        if (from_zero) Tiles::template zero<first_tile + tile>();
        else Tiles::template load<first_tile + tile>(sums + tile * apart, stride);
    });
}

// Stores what `begin_sums` began.
template <typename Tiles, int count, int first_tile = 0>
static inline __attribute__((always_inline)) void store_sums(
    float* sums, int64_t apart = TILE_ROWS * TILE_ROWS, int64_t stride = 64) {
    for_each<count>([&](auto tile) __attribute__((always_inline)) {
        Tiles::template store<first_tile + tile>(sums + tile * apart, stride);
    });
}
