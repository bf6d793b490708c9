// A convolution of 3 x 3 taps, stride 1 and padding 1, of channels-last maps in bfloat16.
//
// A program keeps its weights in shared memory and takes one strip of rows of an image after another: the
// strip with the pixels around it is copied to shared memory once, while the strip before it is multiplied,
// and read from there for all nine taps. A library's kernel reads it nine times from the second-level cache.
// One multiplication is over 16 pixels x 16 channels in x 8 channels out.
//
// Constants that the compiler is given:
//   CHANNELS_IN   3, or a multiple of 16
//   CHANNELS_OUT  16 or 32
//   WIDTH         of the maps, a multiple of 16
//   ROWS, WARPS   rows of a strip, and warps that divide its pixels
//   TRANSPOSED    1 for the convolution that takes gradients of the output back to the input, whose channels
//                 in are the convolution's channels out; 0 for the convolution itself

constexpr int THREADS = WARPS * 32;
constexpr int DEPTH = (CHANNELS_IN + 15) / 16 * 16;  // channels in shared memory: those given, then zeros
constexpr int PIXEL = DEPTH * 2 + 16;                // bytes; the 16 keep rows of a matrix in different banks
constexpr int PIECES = DEPTH / 8;                    // of 16 bytes in a pixel
constexpr int HALO_WIDTH = WIDTH + 2;
constexpr int HALO_PIXELS = HALO_WIDTH * (ROWS + 2);
constexpr int STRIP = HALO_PIXELS * PIXEL;
constexpr int WEIGHT_ROW = TRANSPOSED ? CHANNELS_OUT * 2 + 16 : 9 * DEPTH * 2 + 16;
constexpr int WEIGHTS = (TRANSPOSED ? 9 * DEPTH : CHANNELS_OUT) * WEIGHT_ROW;
constexpr int STEPS = 9 * DEPTH / 16;
constexpr int TILES = ROWS * WIDTH / (16 * WARPS);  // of 16 pixels, a warp's
constexpr int OUT_TILES = CHANNELS_OUT / 8;
static_assert(ROWS * WIDTH % (16 * WARPS) == 0 && WIDTH % 16 == 0, "a warp has whole tiles");
static_assert(OUT_TILES == 2 || OUT_TILES == 4, "a quad of lanes stores 16 or 32 channels");
static_assert(CHANNELS_IN % 16 == 0 || !TRANSPOSED, "few channels are padded in the input alone");

// By channel out, or, transposed, by tap and channel in.
__device__ __forceinline__ void copy_weights(word to, const bfloat* weights) {
    if (TRANSPOSED) {
        constexpr int IN_ROW = CHANNELS_OUT / 8;
        for (int piece = threadIdx.x; piece < 9 * DEPTH * IN_ROW; piece += THREADS) {
            const int row = piece / IN_ROW, part = piece % IN_ROW;
            const int tap = row / DEPTH, channel = row % DEPTH;
            const bfloat* from = weights + (channel * 9 + 8 - tap) * CHANNELS_OUT + part * 8;
            copy_later(to + row * WEIGHT_ROW + part * 16, from, true);
        }
    } else {
        constexpr int IN_ROW = 9 * PIECES;
        for (int piece = threadIdx.x; piece < CHANNELS_OUT * IN_ROW; piece += THREADS) {
            const int row = piece / IN_ROW, part = piece % IN_ROW;
            const word at = to + row * WEIGHT_ROW + part * 16;
            if (CHANNELS_IN == DEPTH) {
                copy_later(at, weights + row * 9 * CHANNELS_IN + part * 8, true);
            } else {
                const bfloat* from = weights + (row * 9 + part / PIECES) * CHANNELS_IN;
                const uint4 few = {from[0] | static_cast<word>(from[1]) << 16, from[2], 0, 0};
                const uint4 none = {0, 0, 0, 0};
                write_shared(at, part % PIECES ? none : few);
            }
        }
    }
}

// A strip and the pixels around it; zeros outside the image.
__device__ __forceinline__ void copy_strip(word to, const bfloat* maps, int strip, int height) {
    const int strips_each = height / ROWS;
    const int image = strip / strips_each, top = strip % strips_each * ROWS - 1;
    const bfloat* base = maps + static_cast<long long>(image) * height * WIDTH * CHANNELS_IN;
    for (int piece = threadIdx.x; piece < HALO_PIXELS * PIECES; piece += THREADS) {
        const int pixel = piece / PIECES, part = piece % PIECES;
        const int row = top + pixel / HALO_WIDTH, column = pixel % HALO_WIDTH - 1;
        const bool inside = row >= 0 && row < height && column >= 0 && column < WIDTH;
        const bfloat* from = inside ? base + (row * WIDTH + column) * CHANNELS_IN : maps;
        const word at = to + pixel * PIXEL + part * 16;
        if (CHANNELS_IN == DEPTH) {
            copy_later(at, from + part * 8, inside);
        } else {
            uint4 value = {0, 0, 0, 0};
            if (inside && part == 0) value.x = from[0] | static_cast<word>(from[1]) << 16, value.y = from[2];
            write_shared(at, value);
        }
    }
}

// Gives lane t of a quad all 8 channels of tile t, where it had 2 of each of the 4 tiles.
__device__ __forceinline__ void gather_channels(word (&value)[4], int lane) {
    word first = lane & 1 ? value[0] : value[1], second = lane & 1 ? value[2] : value[3];
    first = exchange(first, 1), second = exchange(second, 1);
    if (lane & 1) value[0] = first, value[2] = second;
    else value[1] = first, value[3] = second;
    first = lane & 2 ? value[0] : value[2], second = lane & 2 ? value[1] : value[3];
    first = exchange(first, 2), second = exchange(second, 2);
    if (lane & 2) value[0] = first, value[1] = second;
    else value[2] = first, value[3] = second;
}

// Stores what a quad of lanes has of one pixel.
__device__ __forceinline__ void store(bfloat* pixel, const float (&sums)[OUT_TILES][4], int half, int lane) {
    word value[4];
#pragma unroll
    for (int out = 0; out < OUT_TILES; ++out) value[out] = pack(sums[out][half * 2], sums[out][half * 2 + 1]);
    if (OUT_TILES == 4) {
        gather_channels(value, lane);
        const uint4 eight = {value[0], value[1], value[2], value[3]};
        *reinterpret_cast<uint4*>(pixel + lane % 4 * 8) = eight;
    } else {
#pragma unroll
        for (int out = 0; out < OUT_TILES; ++out)
            *reinterpret_cast<word*>(pixel + out * 8 + lane % 4 * 2) = value[out];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
convolve(const bfloat* __restrict__ maps, const bfloat* __restrict__ weights, bfloat* __restrict__ result,
         int strips, int height) {
    extern __shared__ uint4 memory[];
    const word weights_at = shared_address(memory), strips_at = weights_at + WEIGHTS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Where the rows of matrices lie whose addresses this lane gives.
    const int row = lane % 16;
    word left_at[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int pixel = (warp * TILES + tile) * 16 + row;
        left_at[tile] = strips_at + (pixel / WIDTH * HALO_WIDTH + pixel % WIDTH) * PIXEL + lane / 16 * 16;
    }
    const word right_at = TRANSPOSED ? weights_at + row * WEIGHT_ROW + lane / 16 * 16
                                     : weights_at + (lane % 8 + lane / 16 * 8) * WEIGHT_ROW + row / 8 * 16;

    copy_weights(weights_at, weights);
    copy_strip(strips_at, maps, blockIdx.x, height);
    close_copies();
    int stage = 0;
    for (int strip = blockIdx.x; strip < strips; strip += gridDim.x) {
        const int next = strip + gridDim.x;
        if (next < strips) copy_strip(strips_at + (stage ^ 1) * STRIP, maps, next, height);
        close_copies();
        await_copies<1>();
        __syncthreads();

        float sums[TILES][OUT_TILES][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int tap = step * 16 / DEPTH, channel = step * 16 % DEPTH;
            const word offset = stage * STRIP + (tap / 3 * HALO_WIDTH + tap % 3) * PIXEL + channel * 2;
            word left[TILES][4], right[OUT_TILES / 2][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) load_matrices(left[tile], left_at[tile] + offset);
#pragma unroll
            for (int pair = 0; pair < OUT_TILES / 2; ++pair) {
                if (TRANSPOSED) load_transposed(right[pair], right_at + step * 16 * WEIGHT_ROW + pair * 32);
                else load_matrices(right[pair], right_at + pair * 16 * WEIGHT_ROW + step * 32);
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int out = 0; out < OUT_TILES; ++out)
                    multiply(sums[tile][out], left[tile], right[out / 2][out % 2 * 2], right[out / 2][out % 2 * 2 + 1]);
        }

        const long long first = static_cast<long long>(strip) * ROWS * WIDTH + warp * TILES * 16 + lane / 4;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store(result + (first + tile * 16 + half * 8) * CHANNELS_OUT, sums[tile], half, lane);
        __syncthreads();  // all have read the strip, whose place the copies after the next take
        stage ^= 1;
    }
}
