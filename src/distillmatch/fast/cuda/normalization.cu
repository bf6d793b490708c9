// Normalization by the statistics of a batch, then ReLU, of channels-last maps in bfloat16: in one kernel, which
// reads the maps once as far as shared memory can hold them.
//
// Maps are a matrix with a row for each position of each image. Rows come in parts, each normalized by its own
// statistics. A program has GROUP channels of an even share of the rows of one part. It sums over them, leaves its
// sums to the other programs of its channels, waits for theirs, and changes the rows it has kept. So all programs must run at the same time, and the launch has to be cooperative.
// Or it is launched twice, once to sum and once to change, which comes to the same to the last bit: cooperative
// launches of several streams do not overlap, others do. All sums are taken in a fixed order.
//
// Constants that the compiler is given:
//   GROUP    channels of a program, 16 or 32
//   THREADS  of a program, a multiple of 2 x GROUP
//   AHEAD    rows whose numbers a thread asks for before it needs the first
//   EACH     programs that a multiprocessor has at a time

constexpr int PIECES = GROUP / 8;          // of 16 bytes in a program's part of a row
constexpr int AT_ONCE = THREADS / PIECES;  // rows that the threads have at a time
constexpr int WARPS = THREADS / 32;
constexpr int SUMS = 2 * GROUP;
constexpr int SLICES = THREADS / SUMS;
constexpr int SCRATCH = WARPS * SUMS;  // numbers, at least one a thread
static_assert(THREADS % SUMS == 0 && THREADS % 32 == 0 && 32 % PIECES == 0, "sums and rows are shared evenly");

struct Share {
    Part part;
    int first, count;  // rows
    int channel;       // the first of the thread's eight
};

__device__ __forceinline__ Share own_share(const Parts& parts) {
    const Part part = part_of(blockIdx.x, parts);
    const long long rows = part.size();
    const int number = blockIdx.x - part.first_program, sharers = part.programs();
    const int first = rows * number / sharers, after = rows * (number + 1) / sharers;
    const int channel = blockIdx.y * GROUP + threadIdx.x % PIECES * 8;
    return {part, part.begin + first, after - first, channel};
}

// Adds up the threads' sums, in the order of the warps, and leaves them for the other programs.
__device__ __forceinline__ void leave_sums(float* partial, const Eight& first, const Eight& second, float* scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* own = scratch + warp * SUMS + lane * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float one = first.value[i], other = second.value[i];
#pragma unroll
        for (int mask = 16; mask >= PIECES; mask /= 2) one += exchange(one, mask), other += exchange(other, mask);
        if (lane < PIECES) own[i] = one, own[GROUP + i] = other;
    }
    __syncthreads();
    if (threadIdx.x < SUMS) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) total += scratch[i * SUMS + threadIdx.x];
        partial[(blockIdx.y * gridDim.x + blockIdx.x) * SUMS + threadIdx.x] = total;
    }
}

// Waits until all programs of these channels have come here, with the sums they have left. Returns to the first thread
// how many had gone on before, which nothing waits for yet.
__device__ __forceinline__ word await_others(word* counters) {
    word left = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        make_visible();
        word* own = counters + blockIdx.y * 2;
        count_up(own);
        while (read_counter(own) < gridDim.x) {
        }
        left = count_up(own + 1);
    }
    __syncthreads();
    return left;
}

// The last to have gone on makes the counters ready for the next launch.
__device__ __forceinline__ void ready_counters(word* counters, word left) {
    if (threadIdx.x == 0 && left == gridDim.x - 1) counters[blockIdx.y * 2] = 0, counters[blockIdx.y * 2 + 1] = 0;
}

// Adds up a slice of what the programs of a part have left: the numbers of a batch are asked for at once.
__device__ __forceinline__ float add_slice(const float* partial, const Part& part) {
    constexpr int BATCH = 8;
    const int begin = part.first_program, end = part.last_program;
    const float* from = partial + blockIdx.y * gridDim.x * SUMS + threadIdx.x % SUMS;
    float total = 0;
    for (int first = begin + threadIdx.x / SUMS; first < end; first += BATCH * SLICES) {
        float added[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            added[i] = 0;
            if (first + i * SLICES < end) added[i] = read_again(from + (first + i * SLICES) * SUMS);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) total += added[i];
    }
    return total;
}

// Adds up the threads' slices, to `totals` in shared memory.
__device__ __forceinline__ void add_slices(float total, float* totals, float* scratch) {
    __syncthreads();  // all have read what lay in the scratch before
    scratch[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x < SUMS) {
        total = 0;
#pragma unroll
        for (int i = 0; i < SLICES; ++i) total += scratch[i * SUMS + threadIdx.x];
        totals[threadIdx.x] = total;
    }
    __syncthreads();
}

// Those of the thread's channel over a part, of what was added up.
__device__ __forceinline__ Moments moments_of(const float* totals, const Part& part) {
    return moments_of(totals[threadIdx.x], totals[GROUP + threadIdx.x], part.size());
}

extern "C" __global__ void __launch_bounds__(THREADS, EACH)
normalize(const bfloat* __restrict__ maps, const bfloat* __restrict__ shortcut, bfloat* __restrict__ summed,
          bfloat* __restrict__ activated, const float* __restrict__ weight, const float* __restrict__ bias,
          float* __restrict__ running_mean, float* __restrict__ running_variance, float* __restrict__ coefficients,
          float* __restrict__ partial, word* __restrict__ counters, const Parts parts, int channels, int phases, int room,
          int moving, float momentum, float epsilon) {
    extern __shared__ uint4 memory[];
    uint4* kept = memory;
    float* scratch = reinterpret_cast<float*>(memory + room * PIECES);
    float* totals = scratch + SCRATCH;
    const Share share = own_share(parts);
    const long long at = static_cast<long long>(share.first) * channels + share.channel;
    const int own_row = threadIdx.x / PIECES;

    if (phases & SUM) {
        Eight total = {}, squares = {};
        for (int start = own_row; start < share.count; start += AHEAD * AT_ONCE) {
            uint4 value[AHEAD], other[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int row = start + i * AT_ONCE;
                const long long here = at + static_cast<long long>(row) * channels;
                const bool inside = row < share.count;
                value[i] = inside ? *reinterpret_cast<const uint4*>(maps + here) : uint4{0, 0, 0, 0};
                if (shortcut != nullptr)
                    other[i] = inside ? *reinterpret_cast<const uint4*>(shortcut + here) : uint4{0, 0, 0, 0};
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int row = start + i * AT_ONCE;
                Eight number = unpack(value[i]);
                if (shortcut != nullptr) {
                    const Eight added = unpack(other[i]);
#pragma unroll
                    for (int j = 0; j < 8; ++j) number.value[j] += added.value[j];
                    value[i] = packed(number);
                    number = unpack(value[i]);
                    if (row < share.count)
                        *reinterpret_cast<uint4*>(summed + at + static_cast<long long>(row) * channels) = value[i];
                }
                if (row < min(share.count, room)) kept[start * PIECES + i * THREADS + threadIdx.x % PIECES] = value[i];
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    total.value[j] += number.value[j], squares.value[j] += number.value[j] * number.value[j];
            }
        }
        leave_sums(partial, total, squares, scratch);
    }
    if (phases == SUM) return;
    // What is needed after the others' sums is read before.
    const bool has_channel = threadIdx.x < GROUP;
    const int own_channel = blockIdx.y * GROUP + threadIdx.x;
    const float own_weight = has_channel ? weight[own_channel] : 0.0f, own_bias = has_channel ? bias[own_channel] : 0.0f;
    word left = 0;
    if (phases & SUM) left = await_others(counters);
    add_slices(add_slice(partial, share.part), totals, scratch);

    Moments own = {};
    float inverse = 0, own_scale = 0, own_shift = 0;
    if (has_channel) {
        own = moments_of(totals, share.part);
        inverse = 1.0f / sqrtf(own.variance + epsilon);
        own_scale = own_weight * inverse, own_shift = own_bias - own.mean * own_scale;
        scratch[threadIdx.x] = own_scale, scratch[GROUP + threadIdx.x] = own_shift;
    }
    __syncthreads();
    const Eight scale = load_eight(scratch + threadIdx.x % PIECES * 8);
    const Eight shift = load_eight(scratch + GROUP + threadIdx.x % PIECES * 8);
    const bfloat* again = shortcut == nullptr ? maps : summed;
#pragma unroll 4
    for (int row = own_row; row < share.count; row += AT_ONCE) {
        const long long here = at + static_cast<long long>(row) * channels;
        Eight number = unpack(row < room ? kept[row * PIECES + threadIdx.x % PIECES]
                                         : *reinterpret_cast<const uint4*>(again + here));
#pragma unroll
        for (int j = 0; j < 8; ++j) number.value[j] = fmaxf(number.value[j] * scale.value[j] + shift.value[j], 0.0f);
        *reinterpret_cast<uint4*>(activated + here) = packed(number);
    }
    if (has_channel && blockIdx.x == share.part.first_program) {
        float* to = coefficients + share.part.number * 4 * channels + own_channel;
        to[0] = own_scale, to[channels] = own_shift, to[2 * channels] = own.mean, to[3 * channels] = inverse;
    }
    if (blockIdx.x == 0 && moving) {
        // The first program moves the running statistics by all parts that do, in their order.
        Moments running = {};
        if (has_channel)
            running = moved({running_mean[own_channel], running_variance[own_channel]}, own, share.part.size(), momentum);
#pragma unroll
        for (int i = 1; i < MOST_PARTS; ++i) {
            if (i >= moving) continue;
            const Part part = later_part(parts, i);
            add_slices(add_slice(partial, part), totals, scratch);
            if (has_channel) running = moved(running, moments_of(totals, part), part.size(), momentum);
        }
        if (has_channel) running_mean[own_channel] = running.mean, running_variance[own_channel] = running.variance;
    }
    if (phases & SUM) ready_counters(counters, left);
}

extern "C" __global__ void __launch_bounds__(THREADS, EACH)
take_back(const bfloat* __restrict__ given, const bfloat* __restrict__ of_sum, const bfloat* __restrict__ maps,
          bfloat* __restrict__ result, const float* __restrict__ coefficients, float* __restrict__ of_weight,
          float* __restrict__ of_bias, float* __restrict__ partial, word* __restrict__ counters, const Parts parts,
          int channels, int phases, int room) {
    extern __shared__ uint4 memory[];
    uint4 *kept_maps = memory, *kept_given = memory + room * PIECES;
    float* scratch = reinterpret_cast<float*>(memory + 2 * room * PIECES);
    float* totals = scratch + SCRATCH;
    const Share share = own_share(parts);
    const long long at = static_cast<long long>(share.first) * channels + share.channel;
    const int own_row = threadIdx.x / PIECES;
    const float* of_part = coefficients + share.part.number * 4 * channels;
    const Eight scale = load_eight(of_part + share.channel), shift = load_eight(of_part + channels + share.channel);

    if (phases & SUM) {
        Eight total = {}, products = {};
        for (int start = own_row; start < share.count; start += AHEAD * AT_ONCE) {
            uint4 value[AHEAD], gradient[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int row = start + i * AT_ONCE;
                const long long here = at + static_cast<long long>(row) * channels;
                const bool inside = row < share.count;
                value[i] = inside ? *reinterpret_cast<const uint4*>(maps + here) : uint4{0, 0, 0, 0};
                gradient[i] = inside ? *reinterpret_cast<const uint4*>(given + here) : uint4{0, 0, 0, 0};
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int row = start + i * AT_ONCE, place = start * PIECES + i * THREADS + threadIdx.x % PIECES;
                if (row < min(share.count, room)) kept_maps[place] = value[i], kept_given[place] = gradient[i];
                const Eight number = unpack(value[i]), slope = unpack(gradient[i]);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const bool passes = number.value[j] * scale.value[j] + shift.value[j] > 0.0f;
                    const float passed = passes ? slope.value[j] : 0.0f;
                    total.value[j] += passed, products.value[j] += passed * number.value[j];
                }
            }
        }
        leave_sums(partial, total, products, scratch);
    }
    if (phases == SUM) return;

    const bool has_channel = threadIdx.x < GROUP;
    const int own_channel = blockIdx.y * GROUP + threadIdx.x;
    const float gain = has_channel ? of_part[own_channel] : 0.0f, mean = has_channel ? of_part[2 * channels + own_channel] : 0.0f;
    const float inverse = has_channel ? of_part[3 * channels + own_channel] : 0.0f;
    word left = 0;
    if (phases & SUM) left = await_others(counters);
    add_slices(add_slice(partial, share.part), totals, scratch);
    if (has_channel) {
        const float number = share.part.size(), sum = totals[threadIdx.x];
        const float along = inverse * (totals[GROUP + threadIdx.x] - mean * sum);
        const float of_maps = -gain * inverse * along / number;
        scratch[threadIdx.x] = of_maps, scratch[GROUP + threadIdx.x] = -gain * sum / number - of_maps * mean;
    }
    __syncthreads();
    const Eight slope = load_eight(scratch + threadIdx.x % PIECES * 8);
    const Eight constant = load_eight(scratch + GROUP + threadIdx.x % PIECES * 8);
#pragma unroll 4
    for (int row = own_row; row < share.count; row += AT_ONCE) {
        const long long here = at + static_cast<long long>(row) * channels;
        const int place = row * PIECES + threadIdx.x % PIECES;
        const Eight number = unpack(row < room ? kept_maps[place] : *reinterpret_cast<const uint4*>(maps + here));
        const Eight gradient = unpack(row < room ? kept_given[place] : *reinterpret_cast<const uint4*>(given + here));
        Eight made;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const bool passes = number.value[j] * scale.value[j] + shift.value[j] > 0.0f;
            const float passed = passes ? gradient.value[j] : 0.0f;
            made.value[j] = scale.value[j] * passed + slope.value[j] * number.value[j] + constant.value[j];
        }
        if (of_sum != nullptr) {
            const Eight added = unpack(*reinterpret_cast<const uint4*>(of_sum + here));
#pragma unroll
            for (int j = 0; j < 8; ++j) made.value[j] += added.value[j];
        }
        *reinterpret_cast<uint4*>(result + here) = packed(made);
    }
    if (blockIdx.x == 0) {
        // The first program adds up the other parts too: the gradients of weight and bias are of all rows.
        float along_weight = 0, along_bias = 0;
#pragma unroll
        for (int i = 0; i < MOST_PARTS; ++i) {
            if (i > 0) {
                const Part part = later_part(parts, i);
                if (part.size() == 0) continue;
                add_slices(add_slice(partial, part), totals, scratch);
            }
            if (!has_channel) continue;
            const float* own = coefficients + i * 4 * channels + own_channel;
            const float sum = totals[threadIdx.x];
            along_bias += sum;
            along_weight += own[3 * channels] * (totals[GROUP + threadIdx.x] - own[2 * channels] * sum);
        }
        if (has_channel) of_weight[own_channel] = along_weight, of_bias[own_channel] = along_bias;
    }
    if (phases & SUM) ready_counters(counters, left);
}
