// Batch normalization by the statistics of a batch, then ReLU, of channels-last maps in bfloat16: in one kernel, which
// reads the maps once as far as shared memory can hold them.
//
// Maps are a matrix with a row for each position of each image. Rows come in groups, each normalized by its own
// statistics. A thread block has BLOCK_CHANNELS channels of an even share of the rows of one group. It sums over them,
// leaves its sums to the other blocks of its channels, waits for theirs, and changes the rows that it has kept. So all
// blocks must run at the same time, and the launch has to be cooperative. Or the kernel is launched twice, once to sum
// and once to change, which gives the same bits: cooperative launches of several streams do not overlap, others do. All
// sums are taken in a fixed order.
//
// Constants of the compilation:
//   BLOCK_CHANNELS  channels of a block, 16 or 32
//   THREADS         of a block, a multiple of 2 x BLOCK_CHANNELS
//   AHEAD           rows whose numbers a thread asks for before it needs the first
//   BLOCKS_EACH     blocks that a multiprocessor has at a time
//   MAX_GROUPS      groups that there may be

// The phases: the statistics are known only when all blocks have summed.
enum Phases { SUM = 1, CHANGE = 2 };

// Eight numbers that a thread has at a time, 16 bytes of maps in bfloat16.
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

// Where each group's rows end, and its thread blocks, which have it in shares that follow each other. A group that is
// missing is an empty one after the last.
struct Groups {
    int ends[MAX_GROUPS], blocks[MAX_GROUPS];
};

struct Group {
    int number, begin, end, first_block, last_block;  // the ends are those after the last

    __device__ __forceinline__ int size() const { return end - begin; }
    __device__ __forceinline__ int blocks() const { return last_block - first_block; }
};

// Returns one of the groups but the first. The compiler must know its number, or it puts the groups into memory.
__device__ __forceinline__ Group later_group(const Groups& groups, int number) {
    return {number, groups.ends[number - 1], groups.ends[number], groups.blocks[number - 1], groups.blocks[number]};
}

__device__ __forceinline__ Group numbered_group(const Groups& groups, int number) {
    Group found = {0, 0, groups.ends[0], 0, groups.blocks[0]};
#pragma unroll
    for (int i = 1; i < MAX_GROUPS; ++i)
        if (number == i) found = later_group(groups, i);
    return found;
}

__device__ __forceinline__ Group group_of(int block, const Groups& groups) {
    int number = 0;
#pragma unroll
    for (int i = 0; i < MAX_GROUPS - 1; ++i) number += block >= groups.blocks[i];
    return numbered_group(groups, number);
}

// Mean and variance of a channel over so many numbers, of their sum and that of their squares.
struct Moments {
    float mean, variance;
};

__device__ __forceinline__ Moments moments_of(float sum, float squares, float count) {
    const float mean = sum / count;
    return {mean, fmaxf(fmaf(-mean, mean, squares / count), 0.0f)};
}

// Returns the running statistics after a group has updated them.
__device__ __forceinline__ Moments updated(const Moments& running, const Moments& to, float count, float momentum) {
    const float unbiased = to.variance * (count / fmaxf(count - 1.0f, 1.0f));
    return {fmaf(momentum, to.mean - running.mean, running.mean),
            fmaf(momentum, unbiased - running.variance, running.variance)};
}

constexpr int PIECES = BLOCK_CHANNELS / 8;          // of 16 bytes in a block's group of a row
constexpr int AT_ONCE = THREADS / PIECES;  // rows that the threads have at a time
constexpr int WARPS = THREADS / 32;
constexpr int SUMS = 2 * BLOCK_CHANNELS;
constexpr int SLICES = THREADS / SUMS;
constexpr int SCRATCH = WARPS * SUMS;  // numbers, at least one a thread
static_assert(THREADS % SUMS == 0 && THREADS % 32 == 0 && 32 % PIECES == 0, "sums and rows are shared evenly");

struct Share {
    Group group;
    int first, count;  // rows
    int channel;       // the first of the thread's eight
};

__device__ __forceinline__ Share own_share(const Groups& groups) {
    const Group group = group_of(blockIdx.x, groups);
    const long long rows = group.size();
    const int number = blockIdx.x - group.first_block, sharers = group.blocks();
    const int first = rows * number / sharers, after = rows * (number + 1) / sharers;
    const int channel = blockIdx.y * BLOCK_CHANNELS + threadIdx.x % PIECES * 8;
    return {group, group.begin + first, after - first, channel};
}

// Adds up the threads' sums, in the order of the warps, and leaves them for the other blocks.
__device__ __forceinline__ void leave_sums(float* partial, const Eight& first, const Eight& second, float* scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* own = scratch + warp * SUMS + lane * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float one = first.value[i], other = second.value[i];
#pragma unroll
        for (int mask = 16; mask >= PIECES; mask /= 2) one += exchange(one, mask), other += exchange(other, mask);
        if (lane < PIECES) own[i] = one, own[BLOCK_CHANNELS + i] = other;
    }
    __syncthreads();
    if (threadIdx.x < SUMS) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) total += scratch[i * SUMS + threadIdx.x];
        partial[(blockIdx.y * gridDim.x + blockIdx.x) * SUMS + threadIdx.x] = total;
    }
}

// Waits until all blocks of these channels have left their sums. Returns to the first thread how many blocks had gone on
// before.
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

// The last block to go on resets the counters for the next launch.
__device__ __forceinline__ void ready_counters(word* counters, word left) {
    if (threadIdx.x == 0 && left == gridDim.x - 1) counters[blockIdx.y * 2] = 0, counters[blockIdx.y * 2 + 1] = 0;
}

// Adds up a slice of what the blocks of a group have left; the loads of a batch are in flight together.
__device__ __forceinline__ float add_slice(const float* partial, const Group& group) {
    constexpr int BATCH = 8;
    const int begin = group.first_block, end = group.last_block;
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

// Returns those of the thread's channel over a group.
__device__ __forceinline__ Moments moments_of(const float* totals, const Group& group) {
    return moments_of(totals[threadIdx.x], totals[BLOCK_CHANNELS + threadIdx.x], group.size());
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_EACH)
normalize(const bfloat* __restrict__ maps, const bfloat* __restrict__ shortcut, bfloat* __restrict__ summed,
          bfloat* __restrict__ activated, const float* __restrict__ weight, const float* __restrict__ bias,
          float* __restrict__ running_mean, float* __restrict__ running_variance, float* __restrict__ coefficients,
          float* __restrict__ partial, word* __restrict__ counters, const Groups groups, int channels, int phases, int room,
          int updating, float momentum, float epsilon) {
    extern __shared__ uint4 memory[];
    uint4* kept = memory;
    float* scratch = reinterpret_cast<float*>(memory + room * PIECES);
    float* totals = scratch + SCRATCH;
    const Share share = own_share(groups);
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
    // What is needed after the other blocks' sums is read before.
    const bool has_channel = threadIdx.x < BLOCK_CHANNELS;
    const int own_channel = blockIdx.y * BLOCK_CHANNELS + threadIdx.x;
    const float own_weight = has_channel ? weight[own_channel] : 0.0f, own_bias = has_channel ? bias[own_channel] : 0.0f;
    word left = 0;
    if (phases & SUM) left = await_others(counters);
    add_slices(add_slice(partial, share.group), totals, scratch);

    Moments own = {};
    float inverse = 0, own_scale = 0, own_shift = 0;
    if (has_channel) {
        own = moments_of(totals, share.group);
        inverse = 1.0f / sqrtf(own.variance + epsilon);
        own_scale = own_weight * inverse, own_shift = own_bias - own.mean * own_scale;
        scratch[threadIdx.x] = own_scale, scratch[BLOCK_CHANNELS + threadIdx.x] = own_shift;
    }
    __syncthreads();
    const Eight scale = load_eight(scratch + threadIdx.x % PIECES * 8);
    const Eight shift = load_eight(scratch + BLOCK_CHANNELS + threadIdx.x % PIECES * 8);
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
    if (has_channel && blockIdx.x == share.group.first_block) {
        float* to = coefficients + share.group.number * 4 * channels + own_channel;
        to[0] = own_scale, to[channels] = own_shift, to[2 * channels] = own.mean, to[3 * channels] = inverse;
    }
    if (blockIdx.x == 0 && updating) {
        // The first block updates the running statistics by all groups that do, in their order.
        Moments running = {};
        if (has_channel)
            running = updated({running_mean[own_channel], running_variance[own_channel]}, own, share.group.size(), momentum);
#pragma unroll
        for (int i = 1; i < MAX_GROUPS; ++i) {
            if (i >= updating) continue;
            const Group group = later_group(groups, i);
            add_slices(add_slice(partial, group), totals, scratch);
            if (has_channel) running = updated(running, moments_of(totals, group), group.size(), momentum);
        }
        if (has_channel) running_mean[own_channel] = running.mean, running_variance[own_channel] = running.variance;
    }
    if (phases & SUM) ready_counters(counters, left);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_EACH)
normalize_backward(const bfloat* __restrict__ given, const bfloat* __restrict__ total_gradient, const bfloat* __restrict__ maps,
          bfloat* __restrict__ result, const float* __restrict__ coefficients, float* __restrict__ of_weight,
          float* __restrict__ of_bias, float* __restrict__ partial, word* __restrict__ counters, const Groups groups,
          int channels, int phases, int room) {
    extern __shared__ uint4 memory[];
    uint4 *kept_maps = memory, *kept_gradient = memory + room * PIECES;
    float* scratch = reinterpret_cast<float*>(memory + 2 * room * PIECES);
    float* totals = scratch + SCRATCH;
    const Share share = own_share(groups);
    const long long at = static_cast<long long>(share.first) * channels + share.channel;
    const int own_row = threadIdx.x / PIECES;
    const float* of_group = coefficients + share.group.number * 4 * channels;
    const Eight scale = load_eight(of_group + share.channel), shift = load_eight(of_group + channels + share.channel);

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
                if (row < min(share.count, room)) kept_maps[place] = value[i], kept_gradient[place] = gradient[i];
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

    const bool has_channel = threadIdx.x < BLOCK_CHANNELS;
    const int own_channel = blockIdx.y * BLOCK_CHANNELS + threadIdx.x;
    const float gain = has_channel ? of_group[own_channel] : 0.0f, mean = has_channel ? of_group[2 * channels + own_channel] : 0.0f;
    const float inverse = has_channel ? of_group[3 * channels + own_channel] : 0.0f;
    word left = 0;
    if (phases & SUM) left = await_others(counters);
    add_slices(add_slice(partial, share.group), totals, scratch);
    if (has_channel) {
        const float number = share.group.size(), sum = totals[threadIdx.x];
        const float along = inverse * (totals[BLOCK_CHANNELS + threadIdx.x] - mean * sum);
        const float of_maps = -gain * inverse * along / number;
        scratch[threadIdx.x] = of_maps, scratch[BLOCK_CHANNELS + threadIdx.x] = -gain * sum / number - of_maps * mean;
    }
    __syncthreads();
    const Eight slope = load_eight(scratch + threadIdx.x % PIECES * 8);
    const Eight constant = load_eight(scratch + BLOCK_CHANNELS + threadIdx.x % PIECES * 8);
#pragma unroll 4
    for (int row = own_row; row < share.count; row += AT_ONCE) {
        const long long here = at + static_cast<long long>(row) * channels;
        const int place = row * PIECES + threadIdx.x % PIECES;
        const Eight number = unpack(row < room ? kept_maps[place] : *reinterpret_cast<const uint4*>(maps + here));
        const Eight gradient = unpack(row < room ? kept_gradient[place] : *reinterpret_cast<const uint4*>(given + here));
        Eight made;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const bool passes = number.value[j] * scale.value[j] + shift.value[j] > 0.0f;
            const float passed = passes ? gradient.value[j] : 0.0f;
            made.value[j] = scale.value[j] * passed + slope.value[j] * number.value[j] + constant.value[j];
        }
        if (total_gradient != nullptr) {
            const Eight added = unpack(*reinterpret_cast<const uint4*>(total_gradient + here));
#pragma unroll
            for (int j = 0; j < 8; ++j) made.value[j] += added.value[j];
        }
        *reinterpret_cast<uint4*>(result + here) = packed(made);
    }
    if (blockIdx.x == 0) {
        // The first block adds up the other groups, too: the gradients of weight and bias are sums over all rows.
        float along_weight = 0, along_bias = 0;
#pragma unroll
        for (int i = 0; i < MAX_GROUPS; ++i) {
            if (i > 0) {
                const Group group = later_group(groups, i);
                if (group.size() == 0) continue;
                add_slices(add_slice(partial, group), totals, scratch);
            }
            if (!has_channel) continue;
            const float* own = coefficients + i * 4 * channels + own_channel;
            const float sum = totals[threadIdx.x];
            along_bias += sum;
            along_weight += own[3 * channels] * (totals[BLOCK_CHANNELS + threadIdx.x] - own[2 * channels] * sum);
        }
        if (has_channel) of_weight[own_channel] = along_weight, of_bias[own_channel] = along_bias;
    }
    if (phases & SUM) ready_counters(counters, left);
}
