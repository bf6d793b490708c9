// A GPU's blocks of threads on the host, for kernels that a machine without a GPU is to test: every thread is a fiber,
// and those of all blocks take turns. A warp goes on for as long as it need not wait for others, so that a barrier which
// is missing shows. Copies to shared memory arrive only when they are awaited.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(...)

typedef unsigned short bfloat;
typedef unsigned int word;
struct uint4 {
    word x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct Index {
    unsigned x, y, z;
};

using std::max;
using std::min;

constexpr int SHARED_BYTES = 227 * 1024, STACK_BYTES = 64 * 1024;
struct Meeting {
    int come = 0, turn = 0;
};
struct Warp {
    Meeting meeting;
    word value[32], left[32][4], right[32][2];
};
struct Block {
    explicit Block(int threads, Index index) : threads(threads), index(index), warps((threads + 31) / 32) {
        std::memset(shared, 0xff, SHARED_BYTES);  // not a number
    }
    alignas(16) char shared[SHARED_BYTES];
    int threads;
    Index index;
    Meeting meeting, group_meetings[16];
    std::vector<Warp> warps;
};
struct Copy {
    word to;
    char bytes[16];
};
struct Fiber {
    ucontext_t context;  // where it begins
    jmp_buf place;       // where it goes on
    bool begun = false;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    Block* block;
    unsigned thread;
    bool done = false, asks_again = false;
    Meeting* awaited = nullptr;
    int turn = 0;  // of the meeting that is awaited
    std::vector<std::vector<Copy>> copies{1};
};

jmp_buf scheduler;
void* own_kernel;
Fiber* own_fiber;
// What follows is that of the thread whose turn it is.
Index threadIdx, blockIdx, blockDim, gridDim;
Warp* own_warp;
char* shared;
uint4* memory;
int own_lane;

// Jumps, unlike a change of contexts, make no call to the system.
void let_others_go() {
    if (_setjmp(own_fiber->place) == 0) _longjmp(scheduler, 1);
}

void wait_at(Meeting& meeting, int threads) {
    if (++meeting.come == threads) {
        meeting.come = 0, ++meeting.turn;
        return;
    }
    own_fiber->awaited = &meeting, own_fiber->turn = meeting.turn;
    let_others_go();
}
void __syncthreads() { wait_at(own_fiber->block->meeting, own_fiber->block->threads); }
void sync_warps(int group, int threads) { wait_at(own_fiber->block->group_meetings[group + 1], threads); }
void meet() { wait_at(own_warp->meeting, 32); }

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
    std::memset(shared + to, 0xff, 16);  // until the copy arrives, what lies there is not to be read
    own_fiber->copies.back().push_back(copy);
}

void close_copies() { own_fiber->copies.emplace_back(); }

template <int OPEN>
void await_copies() {
    std::vector<std::vector<Copy>>& copies = own_fiber->copies;
    while (static_cast<int>(copies.size()) - 1 > OPEN) {
        for (const Copy& copy : copies.front()) std::memcpy(shared + copy.to, copy.bytes, 16);
        copies.erase(copies.begin());
    }
}

void write_shared(word at, uint4 value) {
    check(at);
    std::memcpy(shared + at, &value, 16);
}

bfloat number_at(int lane, int index) {
    return reinterpret_cast<const bfloat*>(shared + own_warp->value[lane])[index];
}

// Lane 4 g + t gets numbers 2 t and 2 t + 1 of row g of each matrix; transposed, of column g.
void load(word (&to)[4], word row, bool transposed) {
    check(row);
    own_warp->value[own_lane] = row;
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
    Warp& warp = *own_warp;
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
    own_warp->value[own_lane] = value;
    meet();
    const word other = own_warp->value[own_lane ^ mask];
    meet();
    return other;
}

float exchange(float value, int mask) {
    word bits;
    std::memcpy(&bits, &value, 4);
    bits = exchange(bits, mask);
    std::memcpy(&value, &bits, 4);
    return value;
}

float low_of(word packed) { return unpacked(packed, 0); }
float high_of(word packed) { return unpacked(packed, 1); }

void make_visible() {}
word count_up(word* counter) { return (*counter)++; }
word read_counter(const word* counter) {
    own_fiber->asks_again = true;
    let_others_go();
    return *counter;
}
float read_again(const float* from) { return *from; }
unsigned first_of_share(unsigned count, unsigned share, unsigned shares) {
    return static_cast<unsigned long long>(count) * share / shares;
}
void store_four(float* to, float4 value) { std::memcpy(to, &value, 16); }
word pack_positive(float low, float high) { return pack(std::max(low, 0.0f), std::max(high, 0.0f)); }
float multiply_add(float left, float right, float sum) { return std::fma(left, right, sum); }
uint4 read_once(const void* from) {
    uint4 value;
    std::memcpy(&value, from, 16);
    return value;
}
word read_byte_once(const unsigned char* from) { return *from; }
float near_root(float number) { return std::sqrt(number); }
float near_quotient(float number, float divisor) { return number / divisor; }

// Reads what a kernel is given from the standard input.
template <class Number>
std::vector<Number> read_numbers(size_t count) {
    std::vector<Number> numbers(count);
    if (std::fread(numbers.data(), sizeof(Number), count, stdin) != count) std::exit(1);
    return numbers;
}

template <class Number>
void write_numbers(const std::vector<Number>& numbers) {
    if (std::fwrite(numbers.data(), sizeof(Number), numbers.size(), stdout) != numbers.size()) std::exit(1);
}

template <class Kernel>
void run_kernel() {
    (*static_cast<Kernel*>(own_kernel))();
    own_fiber->done = true;
    let_others_go();
}

void resume(Fiber& fiber) {
    own_fiber = &fiber;
    threadIdx = {fiber.thread, 0, 0}, blockIdx = fiber.block->index;
    own_lane = fiber.thread % 32, own_warp = &fiber.block->warps[fiber.thread / 32];
    shared = fiber.block->shared, memory = reinterpret_cast<uint4*>(shared);
    fiber.awaited = nullptr, fiber.asks_again = false;
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}

// Runs all blocks of a grid at once.
template <class Kernel>
void launch(unsigned blocks, unsigned groups, unsigned threads, Kernel kernel) {
    gridDim = {blocks, groups, 1}, blockDim = {threads, 1, 1};
    own_kernel = &kernel;
    std::vector<std::unique_ptr<Block>> grid;
    std::vector<Fiber> fibers(blocks * groups * threads);
    for (unsigned number = 0; number < fibers.size(); ++number) {
        const unsigned block = number / threads, thread = number % threads;
        if (thread == 0) grid.push_back(std::make_unique<Block>(threads, Index{block % blocks, block / blocks, 0}));
        Fiber& fiber = fibers[number];
        fiber.block = grid.back().get(), fiber.thread = thread;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&fiber.context, run_kernel<Kernel>, 0);
    }
    for (size_t done = 0; done < fibers.size();) {
        bool moved = false;
        for (size_t warp = 0; warp < fibers.size(); warp += 32)
            for (bool goes_on = true; goes_on;) {
                goes_on = false;
                for (size_t number = warp; number < min(warp + 32, fibers.size()); ++number) {
                    Fiber& fiber = fibers[number];
                    if (fiber.done || (fiber.awaited && fiber.awaited->turn == fiber.turn)) continue;
                    resume(fiber);
                    done += fiber.done, moved = true, goes_on |= !fiber.asks_again;
                }
            }
        if (!moved) {
            std::fprintf(stderr, "threads wait for others that never come\n");
            std::abort();
        }
    }
}
