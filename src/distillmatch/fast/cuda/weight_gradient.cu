// The weight gradient of a convolution of 3 x 3 taps, stride 1 and padding 1, of channels-last maps in bfloat16.
//
// A thread block makes all nine taps of TILE_OUT x TILE_IN channels over its share of the rows of all images. Groups of
// its warps take streams of rows on their own: rows of maps and gradient come to a ring in shared memory once and one
// after the other, without the rows around a strip. A warp keeps the gradient of three rows in registers and meets each
// row of maps once, for the taps of all three: four loads of matrices for 24 multiplications, where a load and 2.5
// multiplications take equally long. Sums are added up over the warps, and over blocks by a second kernel, in a fixed
// order. One multiplication is over 16 channels out x 16 pixels x 8 channels in.
//
// Constants of the compilation:
//   CHANNELS_IN, CHANNELS_OUT  of the maps, a multiple of 16, or 3, and the gradient, a multiple of 16
//   TILE_IN, TILE_OUT          those of one block, multiples of 16
//   HEIGHT, WIDTH              of the maps; the width is a multiple of 16, or it is 8 and the images are even in
//                              number: two of them are then taken side by side
//   STEP, STAGES               rows in a place of the ring, two or more, and its places, three or more
//   WARP_GROUPS                of a block, each with a stream of rows
//   WARP_IN, WARP_OUT          channels of a warp
//   WARP_ACROSS                1 or 3: taps of a row of taps that a warp makes
//   ADD_COLUMNS, ADD_THREADS   groups of four numbers that a block of the second kernel adds up, and its threads

constexpr int IMAGES = WIDTH == 8 ? 2 : 1;  // side by side in a row
constexpr int ROW = IMAGES * WIDTH;         // pixels
constexpr int COLUMNS = ROW / 16;
constexpr int TILE_WARPS = TILE_OUT / WARP_OUT * (TILE_IN / WARP_IN) * (3 / WARP_ACROSS);
constexpr int GROUP_WARPS = COLUMNS * TILE_WARPS;
constexpr int GROUP_THREADS = GROUP_WARPS * 32;
constexpr int THREADS = WARP_GROUPS * GROUP_THREADS;
constexpr int PIXEL_IN = TILE_IN * 2 + 16, PIXEL_OUT = TILE_OUT * 2 + 16;  // bytes; the 16 keep banks apart
constexpr int MAPS_ROW = IMAGES * (WIDTH + 2) * PIXEL_IN;                  // with a pixel of zeros at either side
constexpr int GRADIENT_ROW = ROW * PIXEL_OUT;
constexpr int GRADIENT = STEP * MAPS_ROW;  // where a place's gradient begins
constexpr int STAGE = STEP * (MAPS_ROW + GRADIENT_ROW);
constexpr int RING = STAGES * STAGE + GRADIENT_ROW;  // the last is for the row before the first
constexpr int OUT = WARP_OUT / 16, IN = WARP_IN / 16;
constexpr bool FEW = CHANNELS_IN == 3;  // a tile in has them and then whatever lies in shared memory
constexpr int IN_TILES = FEW ? 1 : IN * 2;
constexpr int TILES_IN = FEW ? 1 : CHANNELS_IN / TILE_IN;
constexpr int FEW_TURNS = (STEP * ROW + GROUP_THREADS - 1) / GROUP_THREADS;
constexpr int SUM_ROW = 9 * TILE_IN + 8;  // numbers
constexpr int SETS = WARP_GROUPS * COLUMNS;     // of sums that are added up
static_assert(!FEW || (TILE_IN == 16 && IMAGES == 1), "few channels have one tile");
static_assert(HEIGHT % STEP == 0 && ROW % 16 == 0 && STEP >= 2 && STAGES >= 3, "all that a step reads is there");

// Copies ROWS rows from row `first` on, some of their channels, to shared memory. Rows of images that lie side by
// side are counted as one.
template <int ROWS, int CHANNELS, int TILE, int PIXEL, int PLACE, int EDGE>
__device__ __forceinline__ void copy_some(word to, const bfloat* from, unsigned first, int thread) {
    constexpr int PIECES = TILE / 8, ALL = ROWS * ROW * PIECES;
    const unsigned pixels = IMAGES == 1 ? first * WIDTH : (first / HEIGHT * IMAGES * HEIGHT + first % HEIGHT) * WIDTH;
    const bfloat* base = from + static_cast<long long>(pixels) * CHANNELS;
#pragma unroll
    for (int turn = 0; turn < (ALL + GROUP_THREADS - 1) / GROUP_THREADS; ++turn) {
        const unsigned piece = turn * GROUP_THREADS + thread;
        if (ALL % GROUP_THREADS != 0 && piece >= ALL) break;
        const unsigned pixel = piece / PIECES, part = piece % PIECES;
        const unsigned row = pixel / ROW, side = pixel % ROW / WIDTH, column = pixel % WIDTH;
        const unsigned offset = IMAGES == 1 ? pixel : (side * HEIGHT + row) * WIDTH + column;
        const word at = row * PLACE + (side * (WIDTH + 2 * EDGE) + EDGE + column) * PIXEL;
        copy_later(to + at + part * 16, base + offset * CHANNELS + part * 8, true);
    }
}

template <int ROWS>
__device__ __forceinline__ void copy_maps(word to, const bfloat* maps, unsigned first, int thread) {
    copy_some<ROWS, CHANNELS_IN, TILE_IN, PIXEL_IN, MAPS_ROW, 1>(to, maps, first, thread);
}

template <int ROWS>
__device__ __forceinline__ void copy_gradient(word to, const bfloat* gradient, unsigned first, int thread) {
    copy_some<ROWS, CHANNELS_OUT, TILE_OUT, PIXEL_OUT, GRADIENT_ROW, 0>(to, gradient, first, thread);
}

// Pixels of three channels are too small for copies in the background: they wait in registers.
typedef word Few[FEW_TURNS][2];

__device__ __forceinline__ void read_few(Few& to, const bfloat* maps, unsigned first, int thread) {
#pragma unroll
    for (int turn = 0; turn < FEW_TURNS; ++turn) {
        const unsigned pixel = turn * GROUP_THREADS + thread;
        if (STEP * ROW % GROUP_THREADS != 0 && pixel >= STEP * ROW) break;
        const bfloat* from = maps + static_cast<long long>(first * WIDTH + pixel) * 3;
        to[turn][0] = from[0] | static_cast<word>(from[1]) << 16, to[turn][1] = from[2];
    }
}

__device__ __forceinline__ void write_few(word to, const Few& few, int thread) {
#pragma unroll
    for (int turn = 0; turn < FEW_TURNS; ++turn) {
        const unsigned pixel = turn * GROUP_THREADS + thread;
        if (STEP * ROW % GROUP_THREADS != 0 && pixel >= STEP * ROW) break;
        const uint4 value = {few[turn][0], few[turn][1], 0, 0};
        write_shared(to + pixel / ROW * MAPS_ROW + (pixel % ROW + 1) * PIXEL_IN, value);
    }
}

__device__ __forceinline__ void load_gradient(word (&to)[OUT][4], word at) {
#pragma unroll
    for (int out = 0; out < OUT; ++out) load_transposed(to[out], at + out * 32);
}

__device__ __forceinline__ void load_maps(word (&to)[WARP_ACROSS][IN][4], word at) {
#pragma unroll
    for (int across = 0; across < WARP_ACROSS; ++across)
#pragma unroll
        for (int in = 0; in < IN; ++in) load_transposed(to[across][in], at + across * PIXEL_IN + in * 32);
}

__device__ __forceinline__ void sync_own(int group) {
    if (WARP_GROUPS == 1) __syncthreads();
    else sync_warps(group, GROUP_THREADS);
}

typedef float Sums[WARP_ACROSS][OUT][IN_TILES][4];

__device__ __forceinline__ void multiply_all(Sums& sums, const word (&left)[OUT][4],
                                             const word (&right)[WARP_ACROSS][IN][4]) {
#pragma unroll
    for (int across = 0; across < WARP_ACROSS; ++across)
#pragma unroll
        for (int out = 0; out < OUT; ++out)
#pragma unroll
            for (int in = 0; in < IN_TILES; ++in) {
                const word(&two)[4] = right[across][in / 2];
                multiply(sums[across][out][in], left[out], two[in % 2 * 2], two[in % 2 * 2 + 1]);
            }
}

__device__ __forceinline__ void add_four(float4& sum, float4 more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
weight_gradient(const bfloat* __restrict__ maps, const bfloat* __restrict__ gradient, float* __restrict__ partial,
                int steps) {
    extern __shared__ uint4 memory[];
    const int lane = threadIdx.x % 32, group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS;
    const int warp = thread / 32, column = warp / TILE_WARPS, of_tile = warp % TILE_WARPS;
    const int across = WARP_ACROSS == 3 ? 0 : of_tile % 3, of_channels = of_tile / (3 / WARP_ACROSS);
    const int first_in = of_channels % (TILE_IN / WARP_IN) * WARP_IN;
    const int first_out = of_channels / (TILE_IN / WARP_IN) * WARP_OUT;
    const int tile_in = blockIdx.y % TILES_IN * TILE_IN, tile_out = blockIdx.y / TILES_IN * TILE_OUT;
    maps += tile_in, gradient += tile_out;

    const unsigned streams = gridDim.x * WARP_GROUPS, stream = blockIdx.x * WARP_GROUPS + group;
    const int begin = first_of_share(steps, stream, streams), end = first_of_share(steps, stream + 1, streams);
    const word ring = shared_address(memory) + group * RING;

    // The pixels of zeros at the sides of all rows of maps.
    for (int piece = thread; piece < STAGES * STEP * IMAGES * 2 * (PIXEL_IN / 16); piece += GROUP_THREADS) {
        const int place = piece / (PIXEL_IN / 16), row = place / (IMAGES * 2), edge = place % (IMAGES * 2);
        const uint4 zeros = {0, 0, 0, 0};
        const word at = ring + row / STEP * STAGE + row % STEP * MAPS_ROW + piece % (PIXEL_IN / 16) * 16;
        write_shared(at + (edge / 2 * (WIDTH + 2) + edge % 2 * (WIDTH + 1)) * PIXEL_IN, zeros);
    }

    // Of the step after the last only the first row of the gradient is needed.
    auto copy_step = [&](int step, int slot) {
        const word at = ring + slot * STAGE;
        if (step < end) {
            if (!FEW) copy_maps<STEP>(at, maps, step * STEP, thread);
            copy_gradient<STEP>(at + GRADIENT, gradient, step * STEP, thread);
        } else if (step == end && step < steps) {
            copy_gradient<1>(at + GRADIENT, gradient, step * STEP, thread);
        }
        close_copies();
    };
    if (begin < end && static_cast<unsigned>(begin) % (HEIGHT / STEP) != 0)
        copy_gradient<1>(ring + STAGES * STAGE, gradient, begin * STEP - 1, thread);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_step(begin + stage, stage);
    Few few[STAGES - 1];
    if (FEW) {
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage)
            if (begin + stage < end) read_few(few[stage], maps, (begin + stage) * STEP, thread);
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage)
            if (begin + stage < end) write_few(ring + stage * STAGE, few[stage], thread);
    }

    // Where the rows of matrices lie whose addresses this lane gives.
    const int left_pixel = column * 16 + lane % 8 + lane / 16 * 8, right_pixel = column * 16 + lane % 16;
    const word left_at = ring + left_pixel * PIXEL_OUT + first_out * 2 + lane / 8 % 2 * 16;
    const int right_place = right_pixel + right_pixel / WIDTH * 2 + across;
    const word right_at = ring + right_place * PIXEL_IN + first_in * 2 + lane / 16 * 16;

    // At a step's beginning the places of this step and the next have arrived.
    await_copies<STAGES - 3>();
    sync_own(group);
    Sums sums[3] = {};
    word before[OUT][4], here[OUT][4], after[OUT][4], right[WARP_ACROSS][IN][4];
    load_gradient(before, left_at + STAGES * STAGE);
    load_gradient(here, left_at + GRADIENT);
    load_gradient(after, left_at + GRADIENT + GRADIENT_ROW);
    load_maps(right, right_at);
    int slot = 0, in_image = static_cast<unsigned>(begin) % (HEIGHT / STEP);
    for (int step = begin; step < end; ++step) {
        const int last_slot = slot == 0 ? STAGES - 1 : slot - 1;
        copy_step(step + STAGES - 1, last_slot);
        if (FEW && step + STAGES - 1 < end) read_few(few[0], maps, (step + STAGES - 1) * STEP, thread);
        const int next_slot = slot == STAGES - 1 ? 0 : slot + 1;
        const word this_at = slot * STAGE, next_at = next_slot * STAGE;
        const bool top = in_image == 0, bottom = in_image == (HEIGHT / STEP) - 1;
#pragma unroll
        for (int row = 0; row < STEP; ++row) {
            word later[OUT][4], next[WARP_ACROSS][IN][4];
            load_maps(next, right_at + (row + 1 < STEP ? this_at + (row + 1) * MAPS_ROW : next_at));
            const word later_at = (row + 2 < STEP ? this_at : next_at) + GRADIENT;
            load_gradient(later, left_at + later_at + (row + 2 < STEP ? row + 2 : row + 2 - STEP) * GRADIENT_ROW);
            if (row > 0 || !top) multiply_all(sums[2], before, right);
            multiply_all(sums[1], here, right);
            if (row < STEP - 1 || !bottom) multiply_all(sums[0], after, right);
#pragma unroll
            for (int i = 0; i < OUT * 4; ++i) {
                before[i / 4][i % 4] = here[i / 4][i % 4], here[i / 4][i % 4] = after[i / 4][i % 4];
                after[i / 4][i % 4] = later[i / 4][i % 4];
            }
#pragma unroll
            for (int i = 0; i < WARP_ACROSS * IN * 4; ++i)
                right[i / (IN * 4)][i / 4 % IN][i % 4] = next[i / (IN * 4)][i / 4 % IN][i % 4];
        }
        if (FEW && step + STAGES - 1 < end) write_few(ring + last_slot * STAGE, few[0], thread);
        await_copies<STAGES - 3>();
        sync_own(group);
        slot = next_slot, in_image = bottom ? 0 : in_image + 1;
    }

    await_copies<0>();
    __syncthreads();
    float* added = reinterpret_cast<float*>(memory);  // by set, channel out, tap and channel in
    float* own_row = added + ((group * COLUMNS + column) * TILE_OUT + first_out + lane / 4) * SUM_ROW;
    float* own = own_row + across * TILE_IN + first_in + lane % 4 * 2;
#pragma unroll
    for (int down = 0; down < 3; ++down)
#pragma unroll
        for (int tap = 0; tap < WARP_ACROSS; ++tap)
#pragma unroll
            for (int out = 0; out < OUT * 2; ++out)
#pragma unroll
                for (int in = 0; in < IN_TILES; ++in) {
                    const float(&sum)[4] = sums[down][tap][out / 2][in];
                    *reinterpret_cast<float2*>(own + out * 8 * SUM_ROW + (down * 3 + tap) * TILE_IN + in * 8) =
                        float2{sum[out % 2 * 2], sum[out % 2 * 2 + 1]};
                }
    __syncthreads();
    float* to = partial + (static_cast<long long>(blockIdx.x) * CHANNELS_OUT + tile_out) * 9 * CHANNELS_IN + tile_in;
    if (FEW) {
        for (int i = threadIdx.x; i < TILE_OUT * 27; i += THREADS) {
            const float* from = added + i / 27 * SUM_ROW + i / 3 % 9 * TILE_IN + i % 3;
            float sum = 0.0f;
#pragma unroll
            for (int set = 0; set < SETS; ++set) sum += from[set * TILE_OUT * SUM_ROW];
            to[i] = sum;
        }
        return;
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < TILE_OUT * 9 * TILE_IN / 4; i += THREADS) {
        const int out = i / (9 * TILE_IN / 4), in_row = i % (9 * TILE_IN / 4), tap = in_row / (TILE_IN / 4);
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int set = 0; set < SETS; ++set) {
            add_four(sum, *reinterpret_cast<const float4*>(added + (set * TILE_OUT + out) * SUM_ROW + in_row * 4));
        }
        store_four(to + (out * 9 + tap) * CHANNELS_IN + in_row % (TILE_IN / 4) * 4, sum);
    }
}

// Adds up the sums that the blocks have made. A block of this kernel has ADD_COLUMNS groups of four numbers, and its
// rows of threads divide the shares. All loads of a thread are in flight together.
extern "C" __global__ void __launch_bounds__(ADD_THREADS, 1)
add_up(const float4* __restrict__ partial, float4* __restrict__ total, int count, int shares) {
    extern __shared__ uint4 memory[];
    constexpr int ADD_ROWS = ADD_THREADS / ADD_COLUMNS;
    float4* sums = reinterpret_cast<float4*>(memory);
    const int row = threadIdx.x / ADD_COLUMNS, column = blockIdx.x * ADD_COLUMNS + threadIdx.x % ADD_COLUMNS;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < count) {
#pragma unroll 9
        for (int share = row; share < shares; share += ADD_ROWS)
            add_four(sum, partial[static_cast<long long>(share) * count + column]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (row > 0 || column >= count) return;
#pragma unroll
    for (int other = 1; other < ADD_ROWS; ++other) add_four(sum, sums[other * ADD_COLUMNS + threadIdx.x]);
    total[column] = sum;
}
