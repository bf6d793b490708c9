// The weight gradient of a convolution of SIDE x SIDE taps, of any stride, size and number of channels: padded by
// half of its side, of channels-last maps in bfloat16.
//
// It is a product of matrices over all positions of the convolved maps: channels out times, for each position, the
// channels in under all taps. A program makes TILE_OUT x (all taps of TILE_IN channels) over its share of the
// positions. Chunks of positions come to a ring in shared memory, each with all that lies under its taps: what
// neighbouring positions have in common comes several times, from a cache. Where nothing lies, zeros come.
// Groups of warps divide the positions of a chunk; their sums are added up at the end, and those of programs by
// another kernel (add_up.cu), in a fixed order.
// One multiplication is over 16 channels out x 16 positions x 8 channels in.
//
// Constants that the compiler is given:
//   SIDE                 1 or 3
//   TILE_IN, TILE_OUT    channels of a program: 8, 16 or 32, and a multiple of 16
//   WHOLE_IN, WHOLE_OUT  whether the channels in and out are multiples of 8, so that 16 bytes are copied at once
//   STAGES               chunks in the ring, two or more

constexpr int TAPS = SIDE * SIDE;
constexpr int COLUMNS = TAPS * TILE_IN;  // of the result
constexpr int WARP_COLUMNS = COLUMNS < 72 ? COLUMNS : 72;
constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int GROUPS = WARPS / (COLUMNS / WARP_COLUMNS);
constexpr int POSITIONS = (SIDE == 1 ? 16 : 32) * GROUPS;  // of a chunk
constexpr int DEPTH = POSITIONS / 16 / GROUPS;             // multiplications that a warp adds up of each chunk
// Bytes of a position in shared memory: an odd number of 16, which keeps the banks of eight positions apart.
constexpr int PLACE_IN = (COLUMNS / 8 | 1) * 16, PLACE_OUT = (TILE_OUT / 8 | 1) * 16;
constexpr int GRADIENT = POSITIONS * PLACE_IN;  // where a chunk's gradient begins
constexpr int STAGE = POSITIONS * (PLACE_IN + PLACE_OUT);
constexpr int PARTS_IN = TILE_IN / 8, PARTS_OUT = TILE_OUT / 8;
constexpr int AT_ONCE = THREADS / PARTS_IN;  // positions whose maps are copied in one turn
constexpr int TURNS = (POSITIONS + AT_ONCE - 1) / AT_ONCE;
constexpr int OUT = TILE_OUT / 16, IN = WARP_COLUMNS / 8;
constexpr int SUM_ROW = COLUMNS + 8;    // numbers
constexpr int EACH = WHOLE_IN ? 4 : 1;  // numbers that are stored at once
static_assert(COLUMNS % WARP_COLUMNS == 0 && WARPS % (COLUMNS / WARP_COLUMNS) == 0, "warps divide the columns");

struct Shape {
    int positions;  // of the convolved maps, all images together
    int channels_in, channels_out, height, width;
    int out_height, out_width, stride;
    int count;  // numbers from one program's sums to the next one's, a multiple of 4
};

// Eight numbers of a pixel whose channels cannot be copied by 16 bytes; `channels` are left of it.
__device__ __forceinline__ uint4 read_eight(const bfloat* from, int channels, bool inside) {
    word two[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const word low = inside && 2 * i < channels ? from[2 * i] : 0;
        const word high = inside && 2 * i + 1 < channels ? from[2 * i + 1] : 0;
        two[i] = low | high << 16;
    }
    return {two[0], two[1], two[2], two[3]};
}

// Where a thread copies maps from, which moves on by a chunk at a time and needs no division for it.
struct Place {
    int column, row, image;

    __device__ __forceinline__ void move(int columns, int rows, int images, const Shape& shape) {
        column += columns, row += rows, image += images;
        if (column >= shape.out_width) column -= shape.out_width, ++row;
        if (row >= shape.out_height) row -= shape.out_height, ++image;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
general_weight_gradient(const bfloat* __restrict__ maps, const bfloat* __restrict__ gradient,
                        float* __restrict__ partial, Shape shape) {
    extern __shared__ uint4 memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % GROUPS;
    const int first_column = warp / GROUPS * WARP_COLUMNS;
    const int tiles_in = (shape.channels_in + TILE_IN - 1) / TILE_IN;
    const int tile_in = blockIdx.y % tiles_in * TILE_IN, tile_out = blockIdx.y / tiles_in * TILE_OUT;
    const unsigned chunks = (shape.positions + POSITIONS - 1) / POSITIONS;
    const int begin = first_of_share(chunks, blockIdx.x, gridDim.x);
    const int end = first_of_share(chunks, blockIdx.x + 1, gridDim.x);
    const word ring = shared_address(memory);

    const int part_in = threadIdx.x % PARTS_IN, own_position = threadIdx.x / PARTS_IN;
    const int left_in = shape.channels_in - tile_in - part_in * 8;  // channels from this thread's on
    const int all_rows_on = POSITIONS / shape.out_width, columns_on = POSITIONS % shape.out_width;
    const int rows_on = all_rows_on % shape.out_height, images_on = all_rows_on / shape.out_height;
    Place places[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const int position = begin * POSITIONS + turn * AT_ONCE + own_position, row = position / shape.out_width;
        places[turn] = {position % shape.out_width, row % shape.out_height, row / shape.out_height};
    }

    auto copy_maps = [&](int chunk, word to) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            Place& place = places[turn];
            const int in_chunk = turn * AT_ONCE + own_position;
            if (POSITIONS % AT_ONCE != 0 && in_chunk >= POSITIONS) break;
            const bool known = chunk * POSITIONS + in_chunk < shape.positions && left_in > 0;
            const int row = place.row * shape.stride - SIDE / 2, column = place.column * shape.stride - SIDE / 2;
            const long long pixel = (static_cast<long long>(place.image) * shape.height + row) * shape.width + column;
            const bfloat* from = maps + pixel * shape.channels_in + tile_in + part_in * 8;
            const word at = to + in_chunk * PLACE_IN + part_in * 16;
            uint4 read[TAPS];  // if they are not copied, all are under way together
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) {
                const int down = tap / SIDE, across = tap % SIDE;
                const bool inside = known && static_cast<unsigned>(row + down) < static_cast<unsigned>(shape.height) &&
                                    static_cast<unsigned>(column + across) < static_cast<unsigned>(shape.width);
                const bfloat* under = from + (down * shape.width + across) * shape.channels_in;
                if (WHOLE_IN) copy_later(at + tap * TILE_IN * 2, under, inside);
                else read[tap] = read_eight(under, left_in, inside);
            }
            if (!WHOLE_IN) {
#pragma unroll
                for (int tap = 0; tap < TAPS; ++tap) write_shared(at + tap * TILE_IN * 2, read[tap]);
            }
            place.move(columns_on, rows_on, images_on, shape);
        }
    };
    auto copy_gradient = [&](int chunk, word to) {
        constexpr int PIECES = POSITIONS * PARTS_OUT;
#pragma unroll
        for (int turn = 0; turn < (PIECES + THREADS - 1) / THREADS; ++turn) {
            const int piece = turn * THREADS + threadIdx.x;
            if (PIECES % THREADS != 0 && piece >= PIECES) break;
            const int in_chunk = piece / PARTS_OUT, channel = tile_out + piece % PARTS_OUT * 8;
            const int position = chunk * POSITIONS + in_chunk, left = shape.channels_out - channel;
            const bool inside = position < shape.positions && left > 0;
            const bfloat* from = gradient + static_cast<long long>(position) * shape.channels_out + channel;
            const word at = to + in_chunk * PLACE_OUT + piece % PARTS_OUT * 16;
            if (WHOLE_OUT) copy_later(at, from, inside);
            else write_shared(at, read_eight(from, left, inside));
        }
    };
    auto copy_chunk = [&](int chunk, int slot) {
        if (chunk < end) {
            copy_maps(chunk, ring + slot * STAGE);
            copy_gradient(chunk, ring + slot * STAGE + GRADIENT);
        }
        close_copies();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_chunk(begin + stage, stage);

    // Where the rows of matrices lie whose addresses this lane gives.
    const int left_position = group * DEPTH * 16 + lane % 8 + lane / 16 * 8;
    const word left_at = ring + GRADIENT + left_position * PLACE_OUT + lane / 8 % 2 * 16;
    const int right_position = group * DEPTH * 16 + lane % 16;
    const word right_at = ring + right_position * PLACE_IN + first_column * 2 + lane / 16 * 16;

    float sums[OUT][IN][4] = {};
    int slot = 0;
    for (int chunk = begin; chunk < end; ++chunk) {
        // What is copied next takes the place of what all warps have read when they meet here.
        await_copies<STAGES - 2>();
        __syncthreads();
        copy_chunk(chunk + STAGES - 1, slot == 0 ? STAGES - 1 : slot - 1);
#pragma unroll
        for (int deep = 0; deep < DEPTH; ++deep) {
            const word left_from = left_at + slot * STAGE + deep * 16 * PLACE_OUT;
            const word right_from = right_at + slot * STAGE + deep * 16 * PLACE_IN;
            word left[OUT][4], right[2][4];
            load_transposed(right[0], right_from);
#pragma unroll
            for (int out = 0; out < OUT; ++out) load_transposed(left[out], left_from + out * 32);
            // Of an odd number of columns' tiles the last load reads one too much, which is not used.
#pragma unroll
            for (int in = 0; in < IN; ++in) {
                if (in % 2 == 0 && in + 2 < IN) load_transposed(right[in / 2 % 2 ^ 1], right_from + (in + 2) * 16);
                const word(&two)[4] = right[in / 2 % 2];
#pragma unroll
                for (int out = 0; out < OUT; ++out)
                    multiply(sums[out][in], left[out], two[in % 2 * 2], two[in % 2 * 2 + 1]);
            }
        }
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }

    await_copies<0>();
    __syncthreads();
    float* added = reinterpret_cast<float*>(memory);  // by group, channel out, tap and channel in
    float* own = added + (group * TILE_OUT + lane / 4) * SUM_ROW + first_column + lane % 4 * 2;
#pragma unroll
    for (int out = 0; out < OUT * 2; ++out)
#pragma unroll
        for (int in = 0; in < IN; ++in) {
            const float(&sum)[4] = sums[out / 2][in];
            *reinterpret_cast<float2*>(own + out * 8 * SUM_ROW + in * 8) =
                float2{sum[out % 2 * 2], sum[out % 2 * 2 + 1]};
        }
    __syncthreads();
    float* to = partial + static_cast<long long>(blockIdx.x) * shape.count;
    for (int i = threadIdx.x; i < TILE_OUT * COLUMNS / EACH; i += THREADS) {
        const int out = i / (COLUMNS / EACH), column = i % (COLUMNS / EACH) * EACH;
        const int channel_out = tile_out + out, channel_in = tile_in + column % TILE_IN;
        if (channel_out >= shape.channels_out || channel_in >= shape.channels_in) continue;
        const float* from = added + out * SUM_ROW + column;
        float* there = to + (channel_out * TAPS + column / TILE_IN) * shape.channels_in + channel_in;
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int other = 0; other < GROUPS; ++other, from += TILE_OUT * SUM_ROW) {
            if (WHOLE_IN) add_four(sum, *reinterpret_cast<const float4*>(from));
            else sum.x += *from;
        }
        if (WHOLE_IN) store_four(there, sum);
        else *there = sum.x;
    }
}
