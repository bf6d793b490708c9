// Normalization of a frozen network: the factors and summands of all layers in one launch, and normalization, ReLU and
// residual sum where the convolution before is not ours.
//
// Constants of the compilation:
//   MOST          layers of a launch
//   THREADS       of a block that makes factors and summands
//   MOST_THREADS  of any other: a multiple of a pixel's pieces of eight channels, so that a thread has the same channels
//                 in each of its TURNS

struct Layers {
    const float* weights[MOST];
    const float* biases[MOST];
    const float* means[MOST];
    const float* variances[MOST];
    float epsilons[MOST];
    int channels[MOST];
    int firsts[MOST];  // how many channels the layers before have
};

// A block has a layer.
extern "C" __global__ void __launch_bounds__(THREADS)
make_coefficients(const Layers given, float* scales, float* shifts) {
    const int layer = blockIdx.x, first = given.firsts[layer];
    for (int channel = threadIdx.x; channel < given.channels[layer]; channel += THREADS) {
        const float deviation = near_root(given.variances[layer][channel] + given.epsilons[layer]);
        const float scale = near_quotient(given.weights[layer][channel], deviation);
        scales[first + channel] = scale;
        shifts[first + channel] = multiply_add(-given.means[layer][channel], scale, given.biases[layer][channel]);
    }
}

// Activates maps, or their sum with a shortcut. Sum and signs are stored where there is a place for them.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
activate(const bfloat* __restrict__ maps, const bfloat* __restrict__ shortcut, bfloat* __restrict__ total,
         bfloat* __restrict__ activated, unsigned char* __restrict__ signs, const float* __restrict__ scales,
         const float* __restrict__ shifts, int groups, unsigned pieces) {
    const unsigned first = blockIdx.x * blockDim.x * TURNS + threadIdx.x, channel = threadIdx.x % groups * 8;
    uint4 given[TURNS], added[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned piece = first + turn * blockDim.x;
        if (piece >= pieces) break;
        given[turn] = read_once(maps + piece * 8LL);
        if (shortcut) added[turn] = read_once(shortcut + piece * 8LL);
    }
    Coefficients by;
    by.read(scales + channel, shifts + channel);
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned piece = first + turn * blockDim.x;
        if (piece >= pieces) break;
        word value[4];
        unpack(value, given[turn]);
        if (shortcut) add_eight(value, added[turn]);
        if (total) *reinterpret_cast<uint4*>(total + piece * 8LL) = {value[0], value[1], value[2], value[3]};
        activate_eight(value, by);
        *reinterpret_cast<uint4*>(activated + piece * 8LL) = {value[0], value[1], value[2], value[3]};
        if (signs) signs[piece] = signs_of(value);
    }
}

// Makes of gradients of activated maps those of what was normalized, and adds its gradient from elsewhere if there is
// one. `positions` are the pixels that share a gradient: those of an image if it is that of their mean, else 1.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
activate_backward(const bfloat* __restrict__ given, const bfloat* __restrict__ total_gradient, bfloat* __restrict__ result,
          const unsigned char* __restrict__ signs, const float* __restrict__ scales, int groups, int positions,
          unsigned pieces) {
    const unsigned first = blockIdx.x * blockDim.x * TURNS + threadIdx.x, group = threadIdx.x % groups;
    uint4 gradient[TURNS], added[TURNS];
    word passed[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned piece = first + turn * blockDim.x;
        if (piece >= pieces) break;
        const unsigned from = positions == 1 ? piece : piece / groups / positions * groups + group;
        gradient[turn] = *reinterpret_cast<const uint4*>(given + from * 8LL);
        passed[turn] = read_byte_once(signs + piece);
        if (total_gradient) added[turn] = read_once(total_gradient + piece * 8LL);
    }
    Coefficients by;
    by.read(scales + group * 8, nullptr);
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned piece = first + turn * blockDim.x;
        if (piece >= pieces) break;
        word value[4];
        unpack(value, gradient[turn]);
        if (total_gradient) activate_eight_backward<true>(value, passed[turn], by, added[turn]);
        else activate_eight_backward<false>(value, passed[turn], by, added[turn]);
        *reinterpret_cast<uint4*>(result + piece * 8LL) = {value[0], value[1], value[2], value[3]};
    }
}
