// A convolution of 3 x 3 taps, stride 1 and padding 1, of channels-last maps in bfloat16, by streams of rows.
//
// Weights stay in registers: a warp has those of 16 channels out. Groups of a block's warps take streams of rows on
// their own. Rows come to a ring in shared memory once and one after the other; a warp loads 16 pixels of a row with
// each shift across, and adds what they give to the three rows of the output that see them, of which the upper is then
// complete. So matrices are loaded once for six multiplications and no row comes twice, but those around a stream. How
// rows are shared out changes no sum's order. One multiplication is over 16 pixels x 16 channels in x 8 channels out.
//
// Constants of the compilation:
//   CHANNELS_IN   3, or a multiple of 16
//   CHANNELS_OUT  a multiple of 16; transposed, also 3, which are then made as 8
//   HEIGHT, WIDTH of the maps; the width is a multiple of 16
//   STEP, STAGES  rows in a place of the ring, two or more, and its places, three or more
//   WARP_GROUPS   of a block, each with a stream of rows
//   AHEAD         matrices that are loaded before they are multiplied; AHEAD + 1 divides those of a step
//   TRANSPOSED    1 for the backward pass from the output to the input, whose channels in are the convolution's
//                 channels out; 0 for the convolution itself
//   ACTIVATES     1: the result is normalized by running statistics and its negative numbers are 0; transposed, the
//                 result is the gradient of what was normalized: 0 where the activated number was
//   ADDS          1: before that a shortcut is added, or, transposed, the gradient from a convolved shortcut that
//                 begins at the activated maps; 2, transposed: after that the gradient of the shortcut is added that
//                 what was normalized is
// That is done to what a lane is about to store, and rounded where a kernel of its own would round.

constexpr bool FEW = CHANNELS_IN == 3;
constexpr int DEPTH = FEW ? 16 : CHANNELS_IN;  // channels in shared memory: those given, then zeros
constexpr bool FEW_OUT = CHANNELS_OUT == 3;
constexpr int MADE = FEW_OUT ? 16 : CHANNELS_OUT;  // channels that there are weights for: those given, then zeros
constexpr int COLUMNS = WIDTH / 16;
constexpr int OUT_WARPS = MADE / 16;
constexpr int GROUP_THREADS = COLUMNS * OUT_WARPS * 32;
constexpr int THREADS = WARP_GROUPS * GROUP_THREADS;
constexpr int PIXEL = DEPTH * 2 + 16;       // bytes; the 16 keep rows of a matrix in different banks
constexpr int PIECES = DEPTH / 8;           // of 16 bytes in a pixel
constexpr int PLACE = (WIDTH + 1) * PIXEL;  // of a row, with a pixel of zeros before it; that after it is the next's
constexpr int STAGE = STEP * PLACE;
constexpr int RING = STAGES * STAGE + PLACE + PIXEL;  // the last place is for the row before the first
constexpr int WEIGHT_ROW = TRANSPOSED ? MADE * 2 + 16 : 9 * DEPTH * 2 + 16;
constexpr int WEIGHTS = (TRANSPOSED ? 9 * DEPTH : MADE) * WEIGHT_ROW;
constexpr int DEEP = DEPTH / 16;
constexpr int MATRICES = 3 * DEEP;  // of a row
constexpr int BUFFERS = AHEAD + 1;
static_assert(WIDTH % 16 == 0 && HEIGHT % STEP == 0 && STEP >= 2 && STAGES >= 3, "all that a step reads is there");
static_assert(STEP * MATRICES % BUFFERS == 0 && AHEAD <= STEP * MATRICES, "a step begins at the first buffer");
static_assert(TRANSPOSED ? CHANNELS_IN % 16 == 0 : MADE == CHANNELS_OUT, "few channels are those of images");

__device__ __forceinline__ uint4 few_channels(const bfloat* from) {
    return {from[0] | static_cast<word>(from[1]) << 16, from[2], 0, 0};
}

// Where a pixel of a step is in the ring.
__device__ __forceinline__ int place_in_ring(int pixel) { return pixel / WIDTH * PLACE + (pixel % WIDTH + 1) * PIXEL; }

// Returns a number that the compiler has to keep: it would recompute what depends on a thread at each step, which takes
// longer.
__device__ __forceinline__ word hold(word number) { return exchange(number, 0); }

// By channel out, or, transposed, by tap and channel in.
__device__ __forceinline__ void copy_weights(word to, const bfloat* weights) {
    constexpr int IN_ROW = TRANSPOSED ? MADE / 8 : 9 * PIECES;
    constexpr int ROWS = TRANSPOSED ? 9 * DEPTH : MADE;
    for (unsigned piece = threadIdx.x; piece < ROWS * IN_ROW; piece += THREADS) {
        const unsigned row = piece / IN_ROW, part = piece % IN_ROW;
        const unsigned from = TRANSPOSED ? row % DEPTH * 9 + 8 - row / DEPTH : row;
        const word at = to + row * WEIGHT_ROW + part * 16;
        const uint4 zeros = {0, 0, 0, 0};
        if (FEW_OUT) write_shared(at, part ? zeros : few_channels(weights + from * 3));
        else if (!FEW) copy_later(at, weights + (from * IN_ROW + part) * 8, true);
        else write_shared(at, part % PIECES ? zeros : few_channels(weights + (row * 9 + part / PIECES) * 3));
    }
}

// Rows on their way to shared memory. Pixels of three channels are too small for copies in the background: they wait
// in registers until they are written.
template <int ROWS>
struct Rows {
    static constexpr int TURNS = FEW ? (ROWS * WIDTH + GROUP_THREADS - 1) / GROUP_THREADS : 1;
    uint4 few[TURNS];

    // `to_thread` and `from_thread` are where the thread begins in a step.
    __device__ __forceinline__ void copy(word to, const bfloat* maps, int first, int thread, word to_thread,
                                         word from_thread) {
        const bfloat* from = maps + static_cast<long long>(first) * (WIDTH * CHANNELS_IN);
        if (FEW) {
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int pixel = turn * GROUP_THREADS + thread;
                if (pixel < ROWS * WIDTH) few[turn] = few_channels(from + pixel * 3);
            }
            return;
        }
        constexpr int ALL = ROWS * WIDTH * PIECES;
#pragma unroll
        for (int turn = 0; turn < (ALL + GROUP_THREADS - 1) / GROUP_THREADS; ++turn) {
            if (ALL % GROUP_THREADS != 0 && turn * GROUP_THREADS + thread >= ALL) break;
            constexpr int EACH = GROUP_THREADS / PIECES;  // pixels of a turn
            static_assert(EACH % WIDTH == 0 || WIDTH % EACH == 0, "turns differ by what all threads add");
            const word further = place_in_ring(turn * EACH) - place_in_ring(0);
            copy_later(to + to_thread + further, from + from_thread + turn * GROUP_THREADS * 8, true);
        }
    }

    __device__ __forceinline__ void write(word to, int thread) {
        if (!FEW) return;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const int pixel = turn * GROUP_THREADS + thread;
            if (pixel >= ROWS * WIDTH) break;
            const word at = to + place_in_ring(pixel);
            const uint4 zeros = {0, 0, 0, 0};
            write_shared(at, few[turn]), write_shared(at + 16, zeros);
        }
    }
};

__device__ __forceinline__ void sync_own(int group) {
    if (WARP_GROUPS == 1) __syncthreads();
    else sync_warps(group, GROUP_THREADS);
}

// Gives lane t of a quad value t of all its lanes, where it had its own of each.
__device__ __forceinline__ void gather_values(word (&value)[4], int lane) {
    word first = lane & 1 ? value[0] : value[1], second = lane & 1 ? value[2] : value[3];
    first = exchange(first, 1), second = exchange(second, 1);
    if (lane & 1) value[0] = first, value[2] = second;
    else value[1] = first, value[3] = second;
    first = lane & 2 ? value[0] : value[2], second = lane & 2 ? value[1] : value[3];
    first = exchange(first, 2), second = exchange(second, 2);
    if (lane & 2) value[0] = first, value[1] = second;
    else value[2] = first, value[3] = second;
}

typedef float Sums[2][4];  // of 16 pixels and twice 8 channels

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};

// Where a warp is: its group and its thread there, the first of its 16 pixels in a row by 16, its first channel out.
struct Place {
    int lane, group, thread, column, first_out;
};

__device__ __forceinline__ Place own_place() {
    const int thread = threadIdx.x % GROUP_THREADS;
    return {static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x / GROUP_THREADS), thread,
            thread / 32 / OUT_WARPS, thread / 32 % OUT_WARPS * 16};
}

// Convolves the rows of steps from `begin` on, before `end`, of all `steps`. The ring is that of the warp's group; the
// weights' place is free when a row is complete. `finish` is then given the row, its number in a step and its sums.
template <class Finish>
__device__ __forceinline__ void convolve_rows(const Place& place, word weights_at, word ring,
                                              const bfloat* __restrict__ maps, const bfloat* __restrict__ weights,
                                              int steps, int begin, int end, Finish finish) {
    const int lane = place.lane, group = place.group, thread = place.thread;
    const int column = place.column, first_out = place.first_out;
    copy_weights(weights_at, weights);
    const word to_thread = hold(place_in_ring(thread / PIECES) + thread % PIECES * 16), from_thread = hold(thread * 8);
    // Of the step after the last only the first row is needed.
    auto copy_step = [&](Rows<STEP>& rows, int step, int slot) {
        if (step < end) rows.copy(ring + slot * STAGE, maps, step * STEP, thread, to_thread, from_thread);
        else if (step == end && step < steps) {
            Rows<1> row;
            row.copy(ring + slot * STAGE, maps, step * STEP, thread, to_thread, from_thread);
            row.write(ring + slot * STAGE, thread);
        }
        close_copies();
    };
    const bool has_before = begin < end && static_cast<unsigned>(begin) % (HEIGHT / STEP) != 0;
    if (has_before) {
        Rows<1> row;
        row.copy(ring + STAGES * STAGE, maps, begin * STEP - 1, thread, to_thread, from_thread);
        row.write(ring + STAGES * STAGE, thread);
    }
    Rows<STEP> rows[STAGES - 1];
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_step(rows[stage], begin + stage, stage);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage)
        if (begin + stage < end) rows[stage].write(ring + stage * STAGE, thread);
    // The pixels of zeros before and after all rows.
    for (int piece = thread; piece < (STAGES * STEP + 2) * (PIXEL / 16); piece += GROUP_THREADS) {
        const uint4 zeros = {0, 0, 0, 0};
        write_shared(ring + piece / (PIXEL / 16) * PLACE + piece % (PIXEL / 16) * 16, zeros);
    }

    // At a step's beginning the places of this step and the next have arrived.
    await_copies<STAGES - 3>();
    __syncthreads();
    word right[MATRICES][3][4];
#pragma unroll
    for (int matrix = 0; matrix < MATRICES; ++matrix)
#pragma unroll
        for (int down = 0; down < 3; ++down) {
            const int row = (down * 3 + matrix / DEEP) * DEPTH + matrix % DEEP * 16;
            const int of_lane = TRANSPOSED ? row + lane % 16 : first_out + lane % 8 + lane / 16 * 8;
            const word at = weights_at + of_lane * WEIGHT_ROW;
            if (TRANSPOSED) load_transposed(right[matrix][down], at + first_out * 2 + lane / 16 * 16);
            else load_matrices(right[matrix][down], at + row * 2 + lane / 8 % 2 * 16);
        }
    __syncthreads();  // the weights' place is free

    const word left_at = hold(ring + (column * 16 + lane % 16) * PIXEL + lane / 16 * 16);
    auto load_left = [&](word(&to)[4], word row, int matrix) {
        load_matrices(to, left_at + row + matrix / DEEP * PIXEL + matrix % DEEP * 32);
    };
    auto multiply_left = [&](Sums& sums, const word(&left)[4], int matrix, int down) {
        multiply(sums[0], left, right[matrix][down][0], right[matrix][down][1]);
        if (!FEW_OUT) multiply(sums[1], left, right[matrix][down][2], right[matrix][down][3]);
    };

    Sums above = {}, here = {}, below = {};  // of rows of the output, of which `here` is that of the row read
    if (has_before) {
#pragma unroll
        for (int matrix = 0; matrix < MATRICES; ++matrix) {
            word left[4];
            load_left(left, STAGES * STAGE, matrix);
            multiply_left(here, left, matrix, 0);
        }
    }
    word left[BUFFERS][4];
#pragma unroll
    for (int item = 0; item < AHEAD; ++item) load_left(left[item], item / MATRICES * PLACE, item % MATRICES);
    int slot = 0, in_image = static_cast<unsigned>(begin) % (HEIGHT / STEP);
    for (int step = begin; step < end; ++step) {
        const int last_slot = slot == 0 ? STAGES - 1 : slot - 1, next_slot = slot == STAGES - 1 ? 0 : slot + 1;
        copy_step(rows[0], step + STAGES - 1, last_slot);
        const word this_at = slot * STAGE, next_at = next_slot * STAGE;
        const bool top = in_image == 0, bottom = in_image == HEIGHT / STEP - 1;
        // The cases are whole rows, as a condition on each multiplication would cost time.
        auto add_row = [&](auto above_too, auto below_too, int row) {
#pragma unroll
            for (int matrix = 0; matrix < MATRICES; ++matrix) {
                const int item = row * MATRICES + matrix, ahead = item + AHEAD;
                const bool there = ahead < STEP * MATRICES;
                const int ahead_row = ahead / MATRICES - (there ? 0 : STEP);
                load_left(left[ahead % BUFFERS], (there ? this_at : next_at) + ahead_row * PLACE, ahead % MATRICES);
                const word(&own)[4] = left[item % BUFFERS];
                if (above_too.value) multiply_left(above, own, matrix, 2);
                multiply_left(here, own, matrix, 1);
                if (below_too.value) multiply_left(below, own, matrix, 0);
            }
        };
#pragma unroll
        for (int row = 0; row < STEP; ++row) {
            const int complete = step * STEP + row - 1;
            if (row == 0 && (top || step == begin)) add_row(No{}, Yes{}, row);
            else if (row == STEP - 1 && bottom) add_row(Yes{}, No{}, row);
            else add_row(Yes{}, Yes{}, row);
            if (row > 0 || step > begin) finish(complete, (row + STEP - 1) % STEP, above);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                above[i / 4][i % 4] = here[i / 4][i % 4], here[i / 4][i % 4] = below[i / 4][i % 4];
                below[i / 4][i % 4] = 0.0f;
            }
        }
        if (step + STAGES - 1 < end) rows[0].write(ring + last_slot * STAGE, thread);
        await_copies<STAGES - 3>();
        sync_own(group);
        slot = next_slot, in_image = bottom ? 0 : in_image + 1;
    }
    if (begin == end) return;
    if (in_image != 0) {  // the image goes on in the next stream
#pragma unroll
        for (int matrix = 0; matrix < MATRICES; ++matrix) {
            word after[4];
            load_left(after, slot * STAGE, matrix);
            multiply_left(above, after, matrix, 2);
        }
    }
    finish(end * STEP - 1, STEP - 1, above);
}

static_assert(!FEW_OUT || !ACTIVATES, "nothing is normalized before the images");
static_assert((ACTIVATES || !ADDS) && (TRANSPOSED || ADDS < 2), "a sum is there to be activated");

// Gives a lane 8 channels of one pixel.
__device__ __forceinline__ void round_sums(word (&value)[4], const Sums& sums, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = pack(sums[i % 2][i / 2 * 2], sums[i % 2][i / 2 * 2 + 1]);
    gather_values(value, lane);
}

// What a kernel needs besides maps, weights and result, or nothing: the factors and summands of the channels; what is
// added; where signs are stored, if they are wanted, or, transposed, read; where what is normalized is stored, if wanted.
struct Epilogue {
    const float *scales, *shifts;
    const bfloat* added;
    unsigned char* signs;
    bfloat* total;
};

// What is read of them for 8 channels of one pixel.
struct Added {
    uint4 added;
    word signs;

    __device__ __forceinline__ void read(const Epilogue& epilogue, long long at) {
        if (ADDS) added = read_once(epilogue.added + at);
        if (ACTIVATES && TRANSPOSED) signs = read_byte_once(epilogue.signs + at / 8);
    }
};

// Stores 16 pixels of a row of three channels: a lane has two pixels, and two channels or one or none.
__device__ __forceinline__ void store_few(bfloat* result, long long at, const Sums& sums, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const word value = pack(sums[0][i * 2], sums[0][i * 2 + 1]);
        bfloat* to = result + at + i * 8 * CHANNELS_OUT;
        if (lane % 4 < 2) to[0] = static_cast<bfloat>(value);
        if (lane % 4 == 0) to[1] = static_cast<bfloat>(value >> 16);
    }
}

// Stores 16 pixels of a row: 8 channels of one pixel a lane.
__device__ __forceinline__ void store(bfloat* result, const Epilogue& epilogue, long long at, const Sums& sums,
                                      const Added& added, const Coefficients& by, int lane) {
    if (FEW_OUT) return store_few(result, at, sums, lane);
    word value[4];
    round_sums(value, sums, lane);
    if (ADDS == 1) add_eight(value, added.added);
    if (ACTIVATES && TRANSPOSED) activate_eight_backward<ADDS == 2>(value, added.signs, by, added.added);
    else if (ACTIVATES) {
        if (epilogue.total) *reinterpret_cast<uint4*>(epilogue.total + at) = {value[0], value[1], value[2], value[3]};
        activate_eight(value, by);
        if (epilogue.signs) epilogue.signs[at / 8] = signs_of(value);
    }
    const uint4 eight = {value[0], value[1], value[2], value[3]};
    *reinterpret_cast<uint4*>(result + at) = eight;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
convolve(const bfloat* __restrict__ maps, const bfloat* __restrict__ weights, bfloat* __restrict__ result, int steps,
         Epilogue epilogue) {
    extern __shared__ uint4 memory[];
    const Place own = own_place();
    const unsigned streams = gridDim.x * WARP_GROUPS, stream = blockIdx.x * WARP_GROUPS + own.group;
    const int begin = first_of_share(steps, stream, streams), end = first_of_share(steps, stream + 1, streams);
    const word weights_at = shared_address(memory), ring = weights_at + WEIGHTS + own.group * RING;

    constexpr int ROW = WIDTH * CHANNELS_OUT;
    const int pixel = own.column * 16 + own.lane / 4 + (FEW_OUT ? 0 : own.lane / 2 % 2 * 8);
    const int channel = FEW_OUT ? own.lane % 4 * 2 : own.first_out + own.lane % 2 * 8;
    Coefficients by;
    if (ACTIVATES) by.read(epilogue.scales + channel, TRANSPOSED ? nullptr : epilogue.shifts + channel);
    // Of the row that is stored next; what is added to it is read STEP rows before.
    long long at = (static_cast<long long>(begin) * STEP * WIDTH + pixel) * CHANNELS_OUT + channel;
    Added added[STEP];
#pragma unroll
    for (int row = 0; row < STEP; ++row)
        if (begin < end) added[row].read(epilogue, at + row * ROW);
    auto finish = [&](int row, int which, const Sums& sums) {
        store(result, epilogue, at, sums, added[which], by, own.lane);
        if (row + STEP < end * STEP) added[which].read(epilogue, at + STEP * ROW);
        at += ROW;
    };
    convolve_rows(own, weights_at, ring, maps, weights, steps, begin, end, finish);
}
