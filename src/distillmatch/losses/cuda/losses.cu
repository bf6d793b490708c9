// The losses of rows of logits, and the gradients of the logits; kernels.py says when and why. A warp has one row at a
// time, or one row's columns of one group, and its lanes every 32nd column: columns, rows and groups may be any number.
// The warps of a program add up what they have, in an order that the number of rows alone fixes.
//
// Constants that the compiler is given:
//   WARPS  of a program
//   RUNS   of groups of the same size, at most

constexpr int LANES = 32, THREADS = WARPS * LANES;
static_assert(WARPS <= LANES, "the lanes of one warp add up what the warps have");

extern __shared__ uint4 memory[];

__device__ __forceinline__ int own_lane_number() { return threadIdx.x % LANES; }
__device__ __forceinline__ int own_warp_number() { return threadIdx.x / LANES; }

// Gives each lane its columns. Four are asked for at a time, so that their numbers come together.
template <class Each>
__device__ __forceinline__ void for_own_columns(int columns, Each each) {
    for (int first = own_lane_number(); first < columns; first += 4 * LANES)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (first + i * LANES < columns) each(first + i * LANES);
}

template <class Number>
__device__ __forceinline__ Number sum_of_lanes(Number value) {
    for (int mask = LANES / 2; mask > 0; mask /= 2) value += exchange(value, mask);
    return value;
}

// What is not a number is passed over, unless there is nothing else.
__device__ __forceinline__ float largest_of_lanes(float value) {
    for (int mask = LANES / 2; mask > 0; mask /= 2) value = fmaxf(value, exchange(value, mask));
    return value;
}

__device__ __forceinline__ word least_of_lanes(word value) {
    for (int mask = LANES / 2; mask > 0; mask /= 2) value = min(value, exchange(value, mask));
    return value;
}

// Returns the sum over a program's warps, in each of which all lanes have the same value.
template <class Number>
__device__ __forceinline__ Number sum_of_warps(Number value) {
    Number* values = reinterpret_cast<Number*>(memory);
    const int lane = own_lane_number();
    if (lane == 0) values[own_warp_number()] = value;
    __syncthreads();
    const Number sum = sum_of_lanes(lane < WARPS ? values[lane] : Number(0));
    __syncthreads();  // the memory is free again
    return sum;
}

// The softmax of logits x scale: exp(logit x scale - largest) / sum.
struct Softmax {
    float largest, sum, log_sum;
    __device__ __forceinline__ float log_of(float scaled_logit) const { return scaled_logit - largest - log_sum; }
};

__device__ __forceinline__ Softmax softmax_of(const float* logits, int columns, float scale) {
    float largest = logits[0] * scale, sum = 0.0f;
    for_own_columns(columns, [&](int column) { largest = fmaxf(largest, logits[column] * scale); });
    largest = largest_of_lanes(largest);
    for_own_columns(columns, [&](int column) { sum += expf(logits[column] * scale - largest); });
    sum = sum_of_lanes(sum);
    return {largest, sum, logf(sum)};
}

// The likeliest class of a row, the first of equally likely ones, and whether it is at least so likely. A row that is no
// number is class 0 and counts, as torch's comparisons have it.
struct Guess {
    long long label;
    bool counts;
};

__device__ __forceinline__ Guess confident_guess(const float* logits, int columns, float threshold) {
    const Softmax softmax = softmax_of(logits, columns, 1.0f);
    word label = columns;
    for_own_columns(columns, [&](int column) {
        if (expf(logits[column] - softmax.largest) >= 1.0f) label = min(label, word(column));
    });
    label = least_of_lanes(label);
    const float confidence = 1.0f / softmax.sum;
    return {confidence >= 0.0f ? label : 0, !(confidence < threshold)};
}

// Writes the sum of a program's cross entropies x factor, and the gradient of the logits where it is wanted. Labels are
// given, or are those that the weak logits are confident of.
extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy(const float* __restrict__ logits, const long long* labels, const float* __restrict__ weak,
              const float* weights, const unsigned char* mask, float* losses, float* __restrict__ gradient, int rows,
              int columns, int stride, int weak_stride, float threshold, float factor, int passed_over) {
    float total = 0.0f;
    for (int row = blockIdx.x * WARPS + own_warp_number(); row < rows; row += gridDim.x * WARPS) {
        const float* given = logits + size_t(row) * stride;
        const Softmax softmax = softmax_of(given, columns, 1.0f);
        Guess guess;
        if (weak) guess = confident_guess(weak + size_t(row) * weak_stride, columns, threshold);
        else guess = {labels[row], labels[row] != passed_over};
        const long long label = guess.label;
        const bool counts = guess.counts && (!mask || mask[row]), valid = label >= 0 && label < columns;
        float weight = counts ? 1.0f : 0.0f;
        if (weights) weight = counts && valid ? weights[label] : 0.0f;
        if (counts) total += valid ? -weight * softmax.log_of(given[label]) : nanf("");  // torch stops the device there
        if (gradient) {
            float* to = gradient + size_t(row) * columns;
            const float slope = weight * factor;
            for_own_columns(columns, [&](int column) {
                to[column] = (expf(softmax.log_of(given[column])) - (column == label ? 1.0f : 0.0f)) * slope;
            });
        }
    }
    total = sum_of_warps(total);
    if (threadIdx.x == 0) losses[blockIdx.x] = total * factor;
}

// Groups of columns that lie side by side, as runs of groups of the same size.
struct Groups {
    int sizes[RUNS], counts[RUNS];
    int runs, groups, columns;
};

struct Group {
    int start, size;
};

__device__ __forceinline__ Group group_at(const Groups& groups, int number) {
    int run = 0, start = 0;
    for (; run < groups.runs - 1 && number >= groups.counts[run]; ++run) {
        start += groups.counts[run] * groups.sizes[run];
        number -= groups.counts[run];
    }
    return {start + number * groups.sizes[run], groups.sizes[run]};
}

// Returns how many rows of the mask are true. Where none is, no row asks.
__device__ __forceinline__ float members_of(const unsigned char* mask, int rows) {
    word members = 0;
    for (int row = threadIdx.x; row < rows; row += THREADS) members += mask[row] != 0;
    return sum_of_warps(sum_of_lanes(members));
}

// Writes the sum of a program's KL( q || p ) x factor, and the student's gradient where it is wanted. p is the student's
// softmax in a group of columns. q is the teacher's, or the target, or is uniform.
extern "C" __global__ void __launch_bounds__(THREADS)
divergence(const float* __restrict__ student, const float* __restrict__ teacher, const float* __restrict__ target,
           const unsigned char* mask, float* losses, float* __restrict__ gradient, const Groups groups, int rows,
           int columns, int first, int student_stride, int other_stride, float inverse_temperature, float factor,
           int by_size, int mean) {
    const float members = mean && mask ? members_of(mask, rows) : 1.0f;
    const long long items = static_cast<long long>(rows) * groups.groups;
    float total = 0.0f;
    for (long long item = blockIdx.x * WARPS + own_warp_number(); item < items; item += gridDim.x * WARPS) {
        const int row = item / groups.groups, number = item % groups.groups;
        const Group group = group_at(groups, number);
        const float size = group.size, scale = factor * (by_size ? size : 1.0f) / members;
        const bool counts = !mask || mask[row];
        const float* given = student + size_t(row) * student_stride + first + group.start;
        const float* other = teacher ? teacher : target;
        if (other) other += size_t(row) * other_stride + group.start;
        const Softmax p = softmax_of(given, group.size, inverse_temperature);
        const Softmax of_teacher = teacher ? softmax_of(other, group.size, inverse_temperature) : Softmax{};
        const auto log_p_at = [&](int column) { return p.log_of(given[column] * inverse_temperature); };
        const auto log_q_at = [&](int column) { return of_teacher.log_of(other[column] * inverse_temperature); };
        const auto q_at = [&](int column) {
            return teacher ? expf(log_q_at(column)) : target ? other[column] : 1.0f / size;
        };
        float sum = 0.0f, mass = 0.0f;
        for_own_columns(group.size, [&](int column) {
            const float q = q_at(column), log_p = log_p_at(column);
            mass += q;
            if (teacher) sum += q * (log_q_at(column) - log_p);
            else if (target) sum += (q == 0.0f ? 0.0f : q * logf(q)) - q * log_p;
            else sum += q * (-logf(size) - log_p);
        });
        sum = sum_of_lanes(sum), mass = sum_of_lanes(mass);
        if (counts) total += sum * scale;
        if (gradient) {
            float* of_row = gradient + size_t(row) * columns;
            float* to = of_row + first + group.start;
            const float slope = (counts ? scale : 0.0f) * inverse_temperature;
            for_own_columns(group.size, [&](int column) {
                to[column] = (expf(log_p_at(column)) * mass - q_at(column)) * slope;
            });
            if (number == 0) {  // the columns of no group are this warp's
                const int after = first + groups.columns;
                for_own_columns(first, [&](int column) { of_row[column] = 0.0f; });
                for_own_columns(columns - after, [&](int column) { of_row[after + column] = 0.0f; });
            }
        }
    }
    total = sum_of_warps(total);
    if (threadIdx.x == 0) losses[blockIdx.x] = total;
}

// Adds up what the programs of a launch have written; itself one program.
extern "C" __global__ void __launch_bounds__(THREADS)
add_up(const float* losses, float* total, int programs) {
    float sum = 0.0f;
    for (int program = threadIdx.x; program < programs; program += THREADS) sum += losses[program];
    sum = sum_of_warps(sum_of_lanes(sum));
    if (threadIdx.x == 0) *total = sum;
}

// Writes the labels, then the guesses that are accepted, and how many both are; one program.
extern "C" __global__ void __launch_bounds__(THREADS)
join_labels(const long long* labels, const long long* guesses, const unsigned char* accepted, long long* joined,
            long long* count, int labeled, int guessed, int passed_over) {
    word members = 0;
    for (int row = threadIdx.x; row < labeled; row += THREADS) joined[row] = labels[row];
    for (int row = threadIdx.x; row < guessed; row += THREADS) {
        joined[labeled + row] = accepted[row] ? guesses[row] : passed_over;
        members += accepted[row] != 0;
    }
    members = sum_of_warps(sum_of_lanes(members));
    if (threadIdx.x == 0) *count = static_cast<long long>(members) + labeled;
}

// Writes labels_sum / count + weight x loss of up to two losses; a single thread.
extern "C" __global__ void
add_losses(const float* labels_sum, const long long* count, float* total, const float* consistency,
           const float* distillation, float consistency_weight, float distillation_weight) {
    float value = *labels_sum / static_cast<float>(*count);
    if (consistency) value += consistency_weight * *consistency;
    if (distillation) value += distillation_weight * *distillation;
    *total = value;
}
