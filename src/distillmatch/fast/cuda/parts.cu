// Parts of a batch, each normalized by its own statistics, the programs that have them, and how they move the running
// statistics. A part that there is not is an empty one after the last.
//
// Constants that the compiler is given:
//   MOST_PARTS  parts that there may be

struct Parts {
    int ends[MOST_PARTS];      // where each part ends, in rows or in steps of rows
    int programs[MOST_PARTS];  // where its programs end, which have it in shares that follow each other
};

struct Part {
    int number, begin, end, first_program, last_program;  // the ends are those after the last

    __device__ __forceinline__ int size() const { return end - begin; }
    __device__ __forceinline__ int programs() const { return last_program - first_program; }
};

// Returns one of the parts but the first. Numbers must be known to the compiler, which else puts the parts into memory.
__device__ __forceinline__ Part later_part(const Parts& parts, int number) {
    return {number, parts.ends[number - 1], parts.ends[number], parts.programs[number - 1], parts.programs[number]};
}

__device__ __forceinline__ Part numbered_part(const Parts& parts, int number) {
    Part found = {0, 0, parts.ends[0], 0, parts.programs[0]};
#pragma unroll
    for (int i = 1; i < MOST_PARTS; ++i)
        if (number == i) found = later_part(parts, i);
    return found;
}

__device__ __forceinline__ Part part_of(int program, const Parts& parts) {
    int number = 0;
#pragma unroll
    for (int i = 0; i < MOST_PARTS - 1; ++i) number += program >= parts.programs[i];
    return numbered_part(parts, number);
}

// Mean and variance of a channel over so many numbers, of their sum and that of their squares.
struct Moments {
    float mean, variance;
};

__device__ __forceinline__ Moments moments_of(float sum, float squares, float count) {
    const float mean = sum / count;
    return {mean, fmaxf(fmaf(-mean, mean, squares / count), 0.0f)};
}

// What running statistics are after a part has moved them.
__device__ __forceinline__ Moments moved(const Moments& running, const Moments& to, float count, float momentum) {
    const float unbiased = to.variance * (count / fmaxf(count - 1.0f, 1.0f));
    return {fmaf(momentum, to.mean - running.mean, running.mean),
            fmaf(momentum, unbiased - running.variance, running.variance)};
}
