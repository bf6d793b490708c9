// A convolution of 3 x 3 taps and, in the same launch, the normalization by the batch's statistics next to it, of
// channels-last maps in bfloat16. Forward: the convolution, a shortcut added to it, then normalization and ReLU of the
// sum. Back: the convolution that takes gradients to the input, then the way back through the ReLU and normalization
// that had made this input.
//
// The convolution is by streams of rows. A program has whole rows, all channels of them, of one part of the batch, which
// has statistics of its own. What it makes stays in shared memory, where the weights lay before, as far as there is room;
// it sums over it, leaves the sums, waits for those of all programs and changes what it has kept. So the launch has to be
// cooperative. Or the convolution alone is launched, which leaves the same sums, and then `change`: the result is the
// same to the last bit, as sums are left by the same programs and added up in the same order, and products that are added
// to something are written such that no compiler can choose how they are rounded.
//
// Constants that the compiler is given, besides those of the streams; TRANSPOSED is the way back:
//   ADDS          1 if a shortcut is added, forward
//   CHANGE_EACH   programs of `change` that a multiprocessor has at a time

constexpr int WARPS = THREADS / 32;
constexpr int OUT_PIECES = CHANNELS_OUT / 8;  // of 16 bytes in a pixel of the output
constexpr int ROW_PIECES = WIDTH * OUT_PIECES;
constexpr int STEP_PIECES = STEP * ROW_PIECES;
constexpr int SUMS = 2 * CHANNELS_OUT;
constexpr int SLICES = THREADS / (SUMS / 4);
constexpr bool BESIDE = ADDS || TRANSPOSED;  // a map is read beside the output
constexpr int KEPT_CHANGES = 4, READ_CHANGES = TRANSPOSED ? 2 : 4;  // that a thread asks for before it changes the first
static_assert(OUT_PIECES == 4 || OUT_PIECES == 8, "other channels would meet in the same banks");
static_assert(THREADS % (SUMS / 4) == 0 && THREADS >= SUMS, "sums are shared evenly");
static_assert(!(TRANSPOSED && ADDS), "nothing is added to the convolution on the way back");
static_assert(PARTS * RING >= THREADS * 16 + 2 * SUMS * 4, "sums are added up where the ring was");

struct Arguments {
    const bfloat *maps, *weights;  // of the convolution
    const bfloat* beside;          // the shortcut, or the maps that were normalized
    bfloat* result;                // forward, the sum; back, the gradient of the maps that were normalized
    bfloat* activated;
    const bfloat* of_sum;  // a gradient that is added to the result, or none
    const float *weight, *bias;  // of the normalization
    float *running_mean, *running_variance, *coefficients, *of_weight, *of_bias, *partial;
    word* counters;
    Parts parts;  // in steps of rows, and the programs that leave sums
    int steps;    // of all rows
    int phases;
    int room, room_beside;  // rows of the output, and of the map beside it, that a program may keep
    int ring_at;            // bytes before the ring
    int moving;             // parts that move the running statistics
    float momentum, epsilon;
};

// Steps of one part.
struct Share {
    Part part;
    int begin, end;
};

// Returns the share of one of a program's streams, or of a whole program with one stream.
__device__ __forceinline__ Share share_of(const Part& part, int program, int stream, int streams) {
    const int number = (program - part.first_program) * streams + stream, sharers = part.programs() * streams;
    const int begin = first_of_share(part.size(), number, sharers), end = first_of_share(part.size(), number + 1, sharers);
    return {part, part.begin + begin, part.begin + end};
}

// Where 16 bytes of the output are kept: lanes that write at once, of pixels 0, 8, 1, 9 and so on, write to different
// banks.
__device__ __forceinline__ int place_of(int piece) {
    const int pixel = piece / OUT_PIECES;
    if (OUT_PIECES == 4) return piece ^ (pixel >> 3 & 1) * 2;
    return piece ^ ((pixel & 1) * 4 + (pixel >> 3 & 1) * 2);
}

// Waits until all programs have come here, with the sums they have left: no more of what they wrote is read by others.
// Returns to the first thread how many programs had gone on before, which nothing waits for yet.
__device__ __forceinline__ word await_others(word* counters) {
    word left = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        make_visible();
        count_up(counters);
        while (read_counter(counters) < gridDim.x) {
        }
        left = count_up(counters + 1);
    }
    __syncthreads();
    return left;
}

// The last to have gone on makes the counters ready for the next launch.
__device__ __forceinline__ void ready_counters(word* counters, word left) {
    if (threadIdx.x == 0 && left == gridDim.x - 1) counters[0] = 0, counters[1] = 0;
}

// Adds up what the programs of a part have left: all threads together, to `totals` in shared memory. All numbers are asked
// for at once, as far as a batch goes.
__device__ __forceinline__ void add_up(const float* partial, const Part& part, float* totals, float4* scratch) {
    constexpr int BATCH = 8;
    const int four = threadIdx.x % (SUMS / 4), slice = threadIdx.x / (SUMS / 4);
    float4 total = {0, 0, 0, 0};
    for (int first = part.first_program + slice; first < part.last_program; first += BATCH * SLICES) {
        float4 added[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int program = first + i * SLICES;
            added[i] = {0, 0, 0, 0};
            if (program < part.last_program) added[i] = read_four_again(partial + program * SUMS + four * 4);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            total.x += added[i].x, total.y += added[i].y;
            total.z += added[i].z, total.w += added[i].w;
        }
    }
    __syncthreads();  // all have read what lay in the scratch before
    scratch[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x < SUMS) {
        const float* numbers = reinterpret_cast<const float*>(scratch) + threadIdx.x;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < SLICES; ++i) sum += numbers[i * SUMS];
        totals[threadIdx.x] = sum;
    }
    __syncthreads();
}

__device__ __forceinline__ float positions(const Part& part) {
    return static_cast<float>(STEP * WIDTH) * part.size();
}

// Those of the thread's channel over a part, of what was added up.
__device__ __forceinline__ Moments moments_of(const float* totals, const Part& part) {
    return moments_of(totals[threadIdx.x], totals[CHANNELS_OUT + threadIdx.x], positions(part));
}

// Adds up the sums of a share's part, after they have been awaited, and changes the share. `kept` are its first rows;
// the rest is read again. What is changed first is asked for before the sums, which takes as long as the sums do.
template <int CHANGES, bool AWAITS>
__device__ __forceinline__ void change_share(const Share& share, const Arguments& given, const uint4* kept,
                                             const uint4* kept_beside, int room, int room_beside, float4* scratch) {
    float* totals = reinterpret_cast<float*>(scratch + THREADS);
    float* factors = totals + SUMS;
    const int channel = threadIdx.x % OUT_PIECES * 8;
    const int pieces = (share.end - share.begin) * STEP_PIECES;
    const int kept_pieces = room * ROW_PIECES, kept_beside_pieces = room_beside * ROW_PIECES;
    const long long at = static_cast<long long>(share.begin) * STEP_PIECES;
    uint4* result = reinterpret_cast<uint4*>(given.result) + at;
    // The first program does what is of all parts.
    const bool first = share.begin == 0, has_channel = threadIdx.x < CHANNELS_OUT;

    if (!TRANSPOSED) {
        uint4 value[CHANGES];
        auto load = [&](int start) {
#pragma unroll
            for (int i = 0; i < CHANGES; ++i) {
                const int piece = start + i * THREADS;
                if (piece < min(kept_pieces, pieces)) value[i] = kept[place_of(piece)];
                else if (piece < pieces) value[i] = result[piece];
            }
        };
        load(threadIdx.x);
        const int own = threadIdx.x;
        const float own_weight = has_channel ? given.weight[own] : 0.0f, own_bias = has_channel ? given.bias[own] : 0.0f;
        word left = 0;
        if (AWAITS) left = await_others(given.counters);
        add_up(given.partial, share.part, totals, scratch);
        Moments of_part = {};
        float inverse = 0;
        if (has_channel) {
            of_part = moments_of(totals, share.part);
            inverse = 1.0f / sqrtf(of_part.variance + given.epsilon);
            const float scale = own_weight * inverse;
            factors[own] = scale, factors[CHANNELS_OUT + own] = fmaf(-of_part.mean, scale, own_bias);
        }
        __syncthreads();
        const Eight scale = load_eight(factors + channel), shift = load_eight(factors + CHANNELS_OUT + channel);
        uint4* activated = reinterpret_cast<uint4*>(given.activated) + at;
        for (int start = threadIdx.x; start < pieces; start += CHANGES * THREADS) {
            if (start >= THREADS) load(start);
#pragma unroll
            for (int i = 0; i < CHANGES; ++i) {
                const int piece = start + i * THREADS;
                Eight number = unpack(value[i]);
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    number.value[j] = fmaxf(fmaf(number.value[j], scale.value[j], shift.value[j]), 0.0f);
                if (piece < pieces) activated[piece] = packed(number);
            }
        }
        if (has_channel && share.begin == share.part.begin) {
            float* to = given.coefficients + share.part.number * 4 * CHANNELS_OUT + own;
            to[0] = factors[own], to[CHANNELS_OUT] = factors[CHANNELS_OUT + own];
            to[2 * CHANNELS_OUT] = of_part.mean, to[3 * CHANNELS_OUT] = inverse;
        }
        if (first && given.moving) {
            // The running statistics are moved by all parts that do so, in their order.
            Moments running = {};
            if (has_channel) {
                running = {given.running_mean[own], given.running_variance[own]};
                running = moved(running, of_part, positions(share.part), given.momentum);
            }
#pragma unroll
            for (int i = 1; i < MOST_PARTS; ++i) {
                if (i >= given.moving) continue;
                const Part part = later_part(given.parts, i);
                add_up(given.partial, part, totals, scratch);
                if (has_channel) running = moved(running, moments_of(totals, part), positions(part), given.momentum);
            }
            if (has_channel) given.running_mean[own] = running.mean, given.running_variance[own] = running.variance;
        }
        if (AWAITS) ready_counters(given.counters, left);
        return;
    }

    const uint4* beside = reinterpret_cast<const uint4*>(given.beside) + at;
    const uint4* of_sum = reinterpret_cast<const uint4*>(given.of_sum) + at;
    uint4 value[CHANGES], gradient[CHANGES], added[CHANGES];
    auto load = [&](int start) {
#pragma unroll
        for (int i = 0; i < CHANGES; ++i) {
            const int piece = start + i * THREADS;
            if (piece < min(kept_beside_pieces, pieces)) value[i] = kept_beside[place_of(piece)];
            else if (piece < pieces) value[i] = beside[piece];
            if (given.of_sum != nullptr && piece < pieces) added[i] = of_sum[piece];
            if (piece < min(kept_pieces, pieces)) gradient[i] = kept[place_of(piece)];
            else if (piece < pieces) gradient[i] = result[piece];
        }
    };
    load(threadIdx.x);
    const float* of_part = given.coefficients + share.part.number * 4 * CHANNELS_OUT;
    const int own = threadIdx.x;
    const float gain = has_channel ? of_part[own] : 0.0f, mean = has_channel ? of_part[2 * CHANNELS_OUT + own] : 0.0f;
    const float inverse = has_channel ? of_part[3 * CHANNELS_OUT + own] : 0.0f;
    word left = 0;
    if (AWAITS) left = await_others(given.counters);
    add_up(given.partial, share.part, totals, scratch);
    float along = 0, sum = 0;
    if (has_channel) {
        sum = totals[own], along = inverse * fmaf(-mean, sum, totals[CHANNELS_OUT + own]);
        const float count = positions(share.part), slope = -gain * inverse * along / count;
        factors[own] = slope, factors[CHANNELS_OUT + own] = fmaf(-slope, mean, -gain * sum / count);
    }
    __syncthreads();
    const Eight scale = load_eight(of_part + channel), shift = load_eight(of_part + CHANNELS_OUT + channel);
    const Eight slope = load_eight(factors + channel), constant = load_eight(factors + CHANNELS_OUT + channel);
    for (int start = threadIdx.x; start < pieces; start += CHANGES * THREADS) {
        if (start >= THREADS) load(start);
#pragma unroll
        for (int i = 0; i < CHANGES; ++i) {
            const int piece = start + i * THREADS;
            const Eight number = unpack(value[i]), back = unpack(gradient[i]);
            Eight made;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const bool passes = fmaf(number.value[j], scale.value[j], shift.value[j]) > 0.0f;
                const float passed = passes ? back.value[j] : 0.0f;
                made.value[j] = fmaf(scale.value[j], passed, fmaf(slope.value[j], number.value[j], constant.value[j]));
            }
            if (given.of_sum != nullptr) {
                const Eight more = unpack(added[i]);
#pragma unroll
                for (int j = 0; j < 8; ++j) made.value[j] += more.value[j];
            }
            if (piece < pieces) result[piece] = packed(made);
        }
    }
    if (first) {
        // The gradients of weight and bias are of all rows.
#pragma unroll
        for (int i = 1; i < MOST_PARTS; ++i) {
            const Part part = later_part(given.parts, i);
            if (part.size() == 0) continue;
            add_up(given.partial, part, totals, scratch);
            if (!has_channel) continue;
            const float* of_other = given.coefficients + i * 4 * CHANNELS_OUT + own;
            const float other_mean = of_other[2 * CHANNELS_OUT], other_inverse = of_other[3 * CHANNELS_OUT];
            along += other_inverse * fmaf(-other_mean, totals[own], totals[CHANNELS_OUT + own]), sum += totals[own];
        }
        if (has_channel) given.of_weight[own] = along, given.of_bias[own] = sum;
    }
    if (AWAITS) ready_counters(given.counters, left);
}

#define PARAMETERS                                                                                                     \
    const bfloat *__restrict__ maps, const bfloat *__restrict__ weights, const bfloat *__restrict__ beside_output,     \
        bfloat *__restrict__ result, bfloat *__restrict__ activated, const bfloat *__restrict__ of_sum,                \
        const float *__restrict__ weight, const float *__restrict__ bias, float *__restrict__ running_mean,            \
        float *__restrict__ running_variance, float *__restrict__ coefficients, float *__restrict__ of_weight,         \
        float *__restrict__ of_bias, float *__restrict__ partial, word *__restrict__ counters, const Parts parts,      \
        const Parts of_launch, int steps, int phases, int room, int room_beside, int ring_at, int moving,              \
        float momentum, float epsilon
#define GIVEN                                                                                                          \
    {maps,         weights, beside_output, result,  activated, of_sum,   weight,   bias, running_mean,                 \
     running_variance, coefficients, of_weight, of_bias, partial, counters, parts, steps, phases, room, room_beside,   \
     ring_at,      moving,  momentum,      epsilon}

extern "C" __global__ void __launch_bounds__(THREADS, 1) convolve_and_normalize(PARAMETERS) {
    extern __shared__ uint4 memory[];
    const Arguments given = GIVEN;
    const Place own = own_place();
    const int lane = own.lane;
    const Part part = part_of(blockIdx.x, of_launch);
    const Share whole = share_of(part, blockIdx.x, 0, 1), share = share_of(part, blockIdx.x, own.part, PARTS);
    const word kept_at = shared_address(memory);

    // What lies beside the row that is complete next. A lane multiplies for pixels g and g + 8, channels 2 t and 2 t + 1
    // of either eight, where lane = 4 g + t; it stores 8 channels of one pixel.
    const int stored_pixel = own.column * 16 + lane / 4 + lane / 2 % 2 * 8;
    const int stored_piece = hold(stored_pixel * OUT_PIECES + own.first_out / 8 + lane % 2);
    const word kept_own = hold(kept_at + place_of(stored_piece) * 16);
    word beside[4];
    auto load_beside = [&](int row) {
        if (!BESIDE) return;
        const bfloat* from = beside_output + static_cast<long long>(row) * (ROW_PIECES * 8);
        const uint4 eight = reinterpret_cast<const uint4*>(from)[stored_piece];
        beside[0] = eight.x, beside[1] = eight.y, beside[2] = eight.z, beside[3] = eight.w;
    };
    float scale[4], shift[4];
    if (TRANSPOSED) {
        const float* from = coefficients + part.number * 4 * CHANNELS_OUT + own.first_out + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scale[i] = from[i / 2 * 8 + i % 2], shift[i] = from[CHANNELS_OUT + i / 2 * 8 + i % 2];
        }
    }
    float total[4] = {}, products[4] = {};
    // Sums the 16 pixels of a row that are complete, stores and keeps them.
    auto finish = [&](int row, int, const Sums& sums) {
        const int own_row = row - whole.begin * STEP;
        if (TRANSPOSED && own_row < room_beside)
            write_shared(kept_own + (room + own_row) * (ROW_PIECES * 16), {beside[0], beside[1], beside[2], beside[3]});
        if (BESIDE) gather_values(beside, lane);
        word value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[i] = pack(sums[i % 2][i / 2 * 2], sums[i % 2][i / 2 * 2 + 1]);
            if (ADDS) value[i] = pack(low_of(value[i]) + low_of(beside[i]), high_of(value[i]) + high_of(beside[i]));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int channel = i % 2 * 2 + half;
                const float number = half ? high_of(value[i]) : low_of(value[i]);
                if (TRANSPOSED) {
                    const float with = half ? high_of(beside[i]) : low_of(beside[i]);
                    const float passed = fmaf(with, scale[channel], shift[channel]) > 0.0f ? number : 0.0f;
                    total[channel] += passed, products[channel] = fmaf(passed, with, products[channel]);
                } else total[channel] += number, products[channel] = fmaf(number, number, products[channel]);
            }
        }
        gather_values(value, lane);
        const uint4 eight = {value[0], value[1], value[2], value[3]};
        if (own_row < room) write_shared(kept_own + own_row * (ROW_PIECES * 16), eight);
        uint4* to = reinterpret_cast<uint4*>(result) + static_cast<long long>(row) * ROW_PIECES + stored_piece;
        if (!TRANSPOSED || own_row >= room) *to = eight;
    };

    // What is made is kept where the weights lay.
    convolve_rows(own, kept_at, kept_at + ring_at + own.part * RING, maps, weights, steps, share.begin, share.end,
                  load_beside, finish);

    // The lanes' sums, then those of warps with the same channels, in their order.
    await_copies<0>();
    __syncthreads();  // the ring is read no more
    float4* scratch = reinterpret_cast<float4*>(memory + ring_at / 16);
    float* of_warps = reinterpret_cast<float*>(scratch);
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int mask = 16; mask >= 4; mask /= 2)
            total[i] += exchange(total[i], mask), products[i] += exchange(products[i], mask);
        if (lane < 4) {
            const int channel = lane * 2 + i / 2 * 8 + i % 2;
            of_warps[warp * 32 + channel] = total[i], of_warps[warp * 32 + 16 + channel] = products[i];
        }
    }
    __syncthreads();
    if (threadIdx.x < SUMS) {
        const int channel = threadIdx.x % CHANNELS_OUT, kind = threadIdx.x / CHANNELS_OUT;
        const float* from = of_warps + channel / 16 * 32 + kind * 16 + channel % 16;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS / OUT_WARPS; ++i) sum += from[i * OUT_WARPS * 32];
        partial[blockIdx.x * SUMS + threadIdx.x] = sum;
    }
    if (phases == SUM) return;
    change_share<KEPT_CHANGES, true>(whole, given, memory, memory + room * ROW_PIECES, room, room_beside, scratch);
}

// The second of two launches. It may have other programs than the first, in the same proportion.
extern "C" __global__ void __launch_bounds__(THREADS, CHANGE_EACH) change(PARAMETERS) {
    extern __shared__ uint4 memory[];
    const Arguments given = GIVEN;
    // A part is added up as those have left it that have made it.
    const Share here = share_of(part_of(blockIdx.x, of_launch), blockIdx.x, 0, 1);
    const Share whole = {numbered_part(parts, here.part.number), here.begin, here.end};
    change_share<READ_CHANGES, false>(whole, given, memory, memory, 0, 0, reinterpret_cast<float4*>(memory));
}
