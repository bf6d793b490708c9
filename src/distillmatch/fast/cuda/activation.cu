// Normalization by running statistics, ReLU and sum of eight channels of one pixel, in four words. A frozen network's
// normalization is a factor and a summand of each channel. The backward pass needs of activated numbers only which are
// above zero: a bit each, a byte for eight channels.

// Factors and summands of eight channels.
struct Coefficients {
    float scale[8], shift[8];

    __device__ __forceinline__ void read(const float* scales, const float* shifts) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            scale[i] = scales[i];
            if (shifts) shift[i] = shifts[i];
        }
    }
};

__device__ __forceinline__ void unpack(word (&to)[4], uint4 from) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

__device__ __forceinline__ void add_eight(word (&value)[4], uint4 other) {
    word added[4];
    unpack(added, other);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        value[i] = pack(low_of(value[i]) + low_of(added[i]), high_of(value[i]) + high_of(added[i]));
}

__device__ __forceinline__ void activate_eight(word (&value)[4], const Coefficients& by) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        value[i] = pack_positive(multiply_add(low_of(value[i]), by.scale[i * 2], by.shift[i * 2]),
                                 multiply_add(high_of(value[i]), by.scale[i * 2 + 1], by.shift[i * 2 + 1]));
}

// Bit i is set if the first number of word i is above zero, bit i + 4 if the second is.
__device__ __forceinline__ unsigned char signs_of(const word (&value)[4]) {
    word bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= ((value[i] + 0x7fff7fffu) & ~value[i] & 0x80008000u) >> (3 - i);
    return static_cast<unsigned char>((bits >> 12 & 15) | (bits >> 24 & 0xf0));
}

// Makes of the gradient of activated numbers that of what was normalized; `WITH_SUM`, adds its gradient from elsewhere.
template <bool WITH_SUM>
__device__ __forceinline__ void activate_eight_backward(word (&value)[4], word signs, const Coefficients& by, uint4 other) {
    word added[4];
    if (WITH_SUM) unpack(added, other);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        value[i] &= ((signs >> i & 1) | (signs >> i & 16) << 12) * 0xffffu;
        const float low = by.scale[i * 2], high = by.scale[i * 2 + 1];
        if (WITH_SUM)
            value[i] = pack(multiply_add(low_of(value[i]), low, low_of(added[i])),
                            multiply_add(high_of(value[i]), high, high_of(added[i])));
        else value[i] = pack(low_of(value[i]) * low, high_of(value[i]) * high);
    }
}
