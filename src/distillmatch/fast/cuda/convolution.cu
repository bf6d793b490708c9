// A convolution of 3 x 3 taps, stride 1 and padding 1, of channels-last maps in bfloat16, by streams of rows.
//
// Constants that the compiler is given, besides those of the streams:
//   ACTIVATES     1: the result is normalized by running statistics and its negative numbers are 0; transposed, the
//                 result is the gradient of what was normalized: 0 where the activated number was
//   ADDS          1: before that something is added, a shortcut, or, transposed, the gradient that comes by a shortcut
//                 which begins at the activated maps; 2, transposed: after that the gradient of the shortcut is added
//                 that what was normalized is
// That is done to what a lane is about to store, and rounded where it would be if it were a kernel of its own.

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
struct Around {
    const float *scales, *shifts;
    const bfloat* beside;
    unsigned char* signs;
    bfloat* sum;
};

// What is read of them for 8 channels of one pixel.
struct Beside {
    uint4 added;
    word signs;

    __device__ __forceinline__ void read(const Around& around, long long at) {
        if (ADDS) added = read_once(around.beside + at);
        if (ACTIVATES && TRANSPOSED) signs = read_byte_once(around.signs + at / 8);
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
__device__ __forceinline__ void store(bfloat* result, const Around& around, long long at, const Sums& sums,
                                      const Beside& beside, const Coefficients& by, int lane) {
    if (FEW_OUT) return store_few(result, at, sums, lane);
    word value[4];
    round_sums(value, sums, lane);
    if (ADDS == 1) add_eight(value, beside.added);
    if (ACTIVATES && TRANSPOSED) take_back_eight<ADDS == 2>(value, beside.signs, by, beside.added);
    else if (ACTIVATES) {
        if (around.sum) *reinterpret_cast<uint4*>(around.sum + at) = {value[0], value[1], value[2], value[3]};
        activate_eight(value, by);
        if (around.signs) around.signs[at / 8] = signs_of(value);
    }
    const uint4 eight = {value[0], value[1], value[2], value[3]};
    *reinterpret_cast<uint4*>(result + at) = eight;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
convolve(const bfloat* __restrict__ maps, const bfloat* __restrict__ weights, bfloat* __restrict__ result, int steps,
         Around around) {
    extern __shared__ uint4 memory[];
    const Place own = own_place();
    const unsigned streams = gridDim.x * PARTS, stream = blockIdx.x * PARTS + own.part;
    const int begin = first_of_share(steps, stream, streams), end = first_of_share(steps, stream + 1, streams);
    const word weights_at = shared_address(memory), ring = weights_at + WEIGHTS + own.part * RING;

    constexpr int ROW = WIDTH * CHANNELS_OUT;
    const int pixel = own.column * 16 + own.lane / 4 + (FEW_OUT ? 0 : own.lane / 2 % 2 * 8);
    const int channel = FEW_OUT ? own.lane % 4 * 2 : own.first_out + own.lane % 2 * 8;
    Coefficients by;
    if (ACTIVATES) by.read(around.scales + channel, TRANSPOSED ? nullptr : around.shifts + channel);
    // Of the row that is stored next; what lies beside it is read STEP rows before.
    long long at = (static_cast<long long>(begin) * STEP * WIDTH + pixel) * CHANNELS_OUT + channel;
    Beside beside[STEP];
#pragma unroll
    for (int row = 0; row < STEP; ++row)
        if (begin < end) beside[row].read(around, at + row * ROW);
    auto finish = [&](int row, int which, const Sums& sums) {
        store(result, around, at, sums, beside[which], by, own.lane);
        if (row + STEP < end * STEP) beside[which].read(around, at + STEP * ROW);
        at += ROW;
    };
    convolve_rows(own, weights_at, ring, maps, weights, steps, begin, end, [](int) {}, finish);
}
