// A GPU's block of threads on the host, for kernels that a machine without a GPU is to test: every thread is one of
// the host's, warps meet at barriers, and copies to shared memory arrive only when they are awaited.

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)

typedef unsigned short bfloat;
typedef unsigned int word;
struct uint4 {
    word x, y, z, w;
};
struct Index {
    unsigned x, y, z;
};

constexpr int SHARED_BYTES = 227 * 1024;
alignas(16) char shared[SHARED_BYTES];
uint4* const memory = reinterpret_cast<uint4*>(shared);

struct Warp {
    std::barrier<> meeting{32};
    word value[32], left[32][4], right[32][2];
};
struct Copy {
    word to;
    char bytes[16];
};

thread_local Index threadIdx, blockIdx;
thread_local Warp* warp_at_hand;
thread_local int own_lane;
thread_local std::vector<std::vector<Copy>> open_copies;
Index gridDim;
std::barrier<>* block_meeting;

void __syncthreads() { block_meeting->arrive_and_wait(); }
void meet() { warp_at_hand->meeting.arrive_and_wait(); }

void check(word address) {
    if (address % 16 != 0 || address + 16 > SHARED_BYTES) {
        std::fprintf(stderr, "16 bytes of shared memory at %u\n", address);
        std::abort();
    }
}

word shared_address(const void* pointer) { return static_cast<const char*>(pointer) - shared; }

void copy_later(word to, const void* from, bool inside) {
    check(to);
    Copy copy{to, {}};
    if (inside) std::memcpy(copy.bytes, from, 16);
    open_copies.back().push_back(copy);
}

void close_copies() { open_copies.emplace_back(); }

template <int OPEN>
void await_copies() {
    while (static_cast<int>(open_copies.size()) - 1 > OPEN) {
        for (const Copy& copy : open_copies.front()) std::memcpy(shared + copy.to, copy.bytes, 16);
        open_copies.erase(open_copies.begin());
    }
}

void write_shared(word at, uint4 value) {
    check(at);
    std::memcpy(shared + at, &value, 16);
}

bfloat number_at(int lane, int index) {
    return reinterpret_cast<const bfloat*>(shared + warp_at_hand->value[lane])[index];
}

// Lane 4 g + t gets numbers 2 t and 2 t + 1 of row g of each matrix; transposed, of column g.
void load(word (&to)[4], word row, bool transposed) {
    check(row);
    warp_at_hand->value[own_lane] = row;
    meet();
    const int g = own_lane / 4, t = own_lane % 4;
    for (int matrix = 0; matrix < 4; ++matrix) {
        const int first = matrix * 8;
        const word low = transposed ? number_at(first + 2 * t, g) : number_at(first + g, 2 * t);
        const word high = transposed ? number_at(first + 2 * t + 1, g) : number_at(first + g, 2 * t + 1);
        to[matrix] = low | high << 16;
    }
    meet();
}

void load_matrices(word (&to)[4], word row) { load(to, row, false); }
void load_transposed(word (&to)[4], word row) { load(to, row, true); }

float unpacked(word packed, int half) {
    const word bits = half ? packed & 0xffff0000u : packed << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

word rounded(float value) {
    word bits;
    std::memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

word pack(float low, float high) { return rounded(low) | rounded(high) << 16; }

void multiply(float (&sum)[4], const word (&left)[4], word right0, word right1) {
    Warp& warp = *warp_at_hand;
    std::memcpy(warp.left[own_lane], left, sizeof left);
    warp.right[own_lane][0] = right0, warp.right[own_lane][1] = right1;
    meet();
    for (int i = 0; i < 4; ++i) {
        const int row = own_lane / 4 + i / 2 * 8, column = own_lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const word from_left = warp.left[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const word from_right = warp.right[column * 4 + k % 8 / 2][k / 8];
            sum[i] += unpacked(from_left, k % 2) * unpacked(from_right, k % 2);
        }
    }
    meet();
}

word exchange(word value, int mask) {
    warp_at_hand->value[own_lane] = value;
    meet();
    const word other = warp_at_hand->value[own_lane ^ mask];
    meet();
    return other;
}

// Runs the blocks of a grid one after the other.
template <class Kernel>
void launch(int blocks, int threads, Kernel kernel) {
    gridDim = {static_cast<unsigned>(blocks), 1, 1};
    for (int block = 0; block < blocks; ++block) {
        std::memset(shared, 0xcd, SHARED_BYTES);
        std::barrier<> meeting(threads);
        block_meeting = &meeting;
        std::vector<std::unique_ptr<Warp>> warps;
        for (int i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<Warp>());
        std::vector<std::thread> all;
        for (int thread = 0; thread < threads; ++thread)
            all.emplace_back([&, thread] {
                threadIdx = {static_cast<unsigned>(thread), 0, 0};
                blockIdx = {static_cast<unsigned>(block), 0, 0};
                warp_at_hand = warps[thread / 32].get();
                own_lane = thread % 32;
                open_copies.assign(1, {});
                kernel();
            });
        for (std::thread& thread : all) thread.join();
    }
}
