// Eight numbers that a thread has at a time, 16 bytes of maps in bfloat16; and the phases of a normalization by a batch's
// statistics, which are known only when all programs have summed.

enum Phases { SUM = 1, CHANGE = 2 };

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
