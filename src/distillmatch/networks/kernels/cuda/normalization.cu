// Normalization by the statistics of a batch, then ReLU, of channels-last maps in bfloat16: in one kernel, which
// reads the maps once as far as shared memory can hold them.
//
// Maps are a matrix with a row for each position of each image. The first `leading` rows are one part and the
// rest another, each normalized by its own statistics. A program has GROUP channels of an even share of the rows
// of one part. It sums over them, leaves its sums to the other programs of its channels, waits for theirs, and
// changes the rows it has kept. So all programs must run at the same time, and the launch has to be cooperative.
// Or it is launched twice, once to sum and once to change, which comes to the same to the last bit: cooperative
// launches of several streams do not overlap, others do. All sums are taken in a fixed order.
//
// Constants that the compiler is given:
//   GROUP    channels of a program, 16 or 32
//   THREADS  of a program, a multiple of 2 x GROUP
//   AHEAD    rows whose numbers a thread asks for before it needs the first
//   EACH     programs that a multiprocessor has at a time

enum Phases { SUM = 1, CHANGE = 2 };

constexpr int PIECES = GROUP / 8;          // of 16 bytes in a program's part of a row
constexpr int AT_ONCE = THREADS / PIECES;  // rows that the threads have at a time
constexpr int WARPS = THREADS / 32;
constexpr int SUMS = 2 * GROUP;
constexpr int SLICES = THREADS / SUMS;
constexpr int SCRATCH = WARPS * SUMS;  // numbers, at least one a thread
static_assert(THREADS % SUMS == 0 && THREADS % 32 == 0 && 32 % PIECES == 0, "sums and rows are shared evenly");

struct Share {
    int part, first, count;  // rows
    int channel;             // the first of the thread's eight
    int programs;            // of these channels
};

struct Layout {
    int rows, leading, channels;
    int programs_of_first;  // programs are first those of the leading part, then those of the other
};

__device__ __forceinline__ Share own_share(const Layout& layout) {
    const int program = blockIdx.x, programs = gridDim.x;
    const bool of_first = program < layout.programs_of_first;
    const int begin = of_first ? 0 : layout.leading;
    const long long rows = (of_first ? layout.leading : layout.rows) - begin;
    const int number = of_first ? program : program - layout.programs_of_first;
    const int sharers = of_first ? layout.programs_of_first : programs - layout.programs_of_first;
    const int first = rows * number / sharers, after = rows * (number + 1) / sharers;
    const int channel = blockIdx.y * GROUP + threadIdx.x % PIECES * 8;
    return {of_first ? 0 : 1, begin + first, after - first, channel, programs};
}

struct Eight {
    float value[8];
};

__device__ __forceinline__ Eight unpack(uint4 packed) {
    return {low_of(packed.x), high_of(packed.x), low_of(packed.y), high_of(packed.y),
            low_of(packed.z), high_of(packed.z), low_of(packed.w), high_of(packed.w)};
}

__device__ __forceinline__ uint4 packed(const Eight& of) {
    return {pack(of.value[0], of.value[1]), pack(of.value[2], of.value[3]), pack(of.value[4], of.value[5]),
            pack(of.value[6], of.value[7])};
}

__device__ __forceinline__ Eight load_eight(const float* from) {
    Eight loaded;
#pragma unroll
    for (int i = 0; i < 8; ++i) loaded.value[i] = from[i];
    return loaded;
}

__device__ __forceinline__ uint4 load_piece(const bfloat* from, bool inside) {
    return inside ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

__device__ __forceinline__ void store_piece(bfloat* to, uint4 value) { *reinterpret_cast<uint4*>(to) = value; }

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

// Waits until all programs of these channels have come here, with what they wrote before.
__device__ __forceinline__ void await_others(word* counters) {
    make_visible();
    __syncthreads();
    if (threadIdx.x == 0) {
        word* own = counters + blockIdx.y * 2;
        count_up(own);
        while (read_counter(own) < gridDim.x) {
        }
        // The last to leave makes the counters ready for the next launch.
        if (count_up(own + 1) == gridDim.x - 1) own[0] = 0, own[1] = 0;
    }
    __syncthreads();
}

// Adds up what the programs of a part have left: all threads together, to `totals` in shared memory.
__device__ __forceinline__ void add_up(const float* partial, int begin, int end, float* totals, float* scratch) {
    const int sum = threadIdx.x % SUMS, slice = threadIdx.x / SUMS;
    const float* from = partial + blockIdx.y * gridDim.x * SUMS + sum;
    float total = 0;
#pragma unroll 8
    for (int program = begin + slice; program < end; program += SLICES) total += read_again(from + program * SUMS);
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

extern "C" __global__ void __launch_bounds__(THREADS, EACH)
normalize(const bfloat* __restrict__ maps, const bfloat* __restrict__ shortcut, bfloat* __restrict__ summed,
          bfloat* __restrict__ activated, const float* __restrict__ weight, const float* __restrict__ bias,
          float* __restrict__ running_mean, float* __restrict__ running_variance, float* __restrict__ coefficients,
          float* __restrict__ partial, word* __restrict__ counters, int rows, int leading, int channels,
          int programs_of_first, int phases, int room, int moves, float momentum, float epsilon) {
    extern __shared__ uint4 memory[];
    uint4* kept = memory;
    float* scratch = reinterpret_cast<float*>(memory + room * PIECES);
    float* totals = scratch + SCRATCH;
    const Share share = own_share({rows, leading, channels, programs_of_first});
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
                value[i] = load_piece(maps + here, inside);
                if (shortcut != nullptr)
                    other[i] = load_piece(shortcut + here, inside);
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
                        store_piece(summed + at + static_cast<long long>(row) * channels, value[i]);
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
    if (phases & SUM) await_others(counters);
    const int begin = share.part ? programs_of_first : 0, end = share.part ? share.programs : programs_of_first;
    add_up(partial, begin, end, totals, scratch);

    if (threadIdx.x < GROUP) {
        const int channel = blockIdx.y * GROUP + threadIdx.x;
        const float count = share.part ? rows - leading : leading;
        const float mean = totals[threadIdx.x] / count;
        const float variance = fmaxf(totals[GROUP + threadIdx.x] / count - mean * mean, 0.0f);
        const float inverse = 1.0f / sqrtf(variance + epsilon);
        const float scale = weight[channel] * inverse, shift = bias[channel] - mean * scale;
        scratch[threadIdx.x] = scale, scratch[GROUP + threadIdx.x] = shift;
        if (blockIdx.x == begin) {
            float* to = coefficients + share.part * 4 * channels + channel;
            to[0] = scale, to[channels] = shift, to[2 * channels] = mean, to[3 * channels] = inverse;
            if (moves && share.part == 0) {
                const float unbiased = variance * (count / fmaxf(count - 1.0f, 1.0f));
                running_mean[channel] += momentum * (mean - running_mean[channel]);
                running_variance[channel] += momentum * (unbiased - running_variance[channel]);
            }
        }
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
        store_piece(activated + here, packed(number));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, EACH)
take_back(const bfloat* __restrict__ given, const bfloat* __restrict__ of_sum, const bfloat* __restrict__ maps,
          bfloat* __restrict__ result, const float* __restrict__ coefficients, float* __restrict__ of_weight,
          float* __restrict__ of_bias, float* __restrict__ partial, word* __restrict__ counters, int rows, int leading,
          int channels, int programs_of_first, int phases, int room) {
    extern __shared__ uint4 memory[];
    uint4 *kept_maps = memory, *kept_given = memory + room * PIECES;
    float* scratch = reinterpret_cast<float*>(memory + 2 * room * PIECES);
    float* totals = scratch + SCRATCH;
    const Share share = own_share({rows, leading, channels, programs_of_first});
    const long long at = static_cast<long long>(share.first) * channels + share.channel;
    const int own_row = threadIdx.x / PIECES;
    const float* of_part = coefficients + share.part * 4 * channels;
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
                value[i] = load_piece(maps + here, inside);
                gradient[i] = load_piece(given + here, inside);
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
    if (phases & SUM) await_others(counters);

    // The first program adds up both parts, its own last: the gradients of weight and bias are of all rows.
    const bool first = blockIdx.x == 0;
    float along_weight = 0, along_bias = 0;
    for (int part = first && leading < rows ? 1 : share.part;; part = 0) {
        add_up(partial, part ? programs_of_first : 0, part ? share.programs : programs_of_first, totals, scratch);
        if (threadIdx.x < GROUP) {
            const int channel = blockIdx.y * GROUP + threadIdx.x;
            const float* own = coefficients + part * 4 * channels + channel;
            const float gain = own[0], mean = own[2 * channels], inverse = own[3 * channels];
            const float count = part ? rows - leading : leading, sum = totals[threadIdx.x];
            const float along = inverse * (totals[GROUP + threadIdx.x] - mean * sum);
            along_weight += along, along_bias += sum;
            const float slope = -gain * inverse * along / count;
            scratch[threadIdx.x] = slope, scratch[GROUP + threadIdx.x] = -gain * sum / count - slope * mean;
            if (first && part == 0) of_weight[channel] = along_weight, of_bias[channel] = along_bias;
        }
        __syncthreads();
        if (part == share.part) break;
    }
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
        store_piece(result + here, packed(made));
    }
}
