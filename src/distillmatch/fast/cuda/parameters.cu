// All parameters of a network at once: a step of gradient descent by clipped gradients, and rounding to bfloat16. They
// are many small tensors; a thread block has one piece of one of them, so that the largest does not delay the others.
//
// Constants of the compilation:
//   MOST     tensors of a launch
//   PIECE    numbers of a block
//   THREADS  of a block

struct Tensors {
    void* first[MOST];
    void* second[MOST];
    void* third[MOST];
    int counts[MOST];  // of numbers
    int pieces[MOST];  // how many the tensors before have
    int tensors;
};

struct Piece {
    int tensor, begin, end;
};

__device__ __forceinline__ Piece own_piece(const Tensors& given) {
    const int number = blockIdx.x;
    int tensor = 0;
    for (int step = 64; step > 0; step /= 2)
        if (tensor + step < given.tensors && given.pieces[tensor + step] <= number) tensor += step;
    const int begin = (number - given.pieces[tensor]) * PIECE;
    return {tensor, begin, min(begin + PIECE, given.counts[tensor])};
}
static_assert(MOST <= 128, "the search for a piece's tensor has steps of 64 and less");

extern __shared__ uint4 memory[];

// Returns the sum over all threads to each.
__device__ __forceinline__ float add_threads(float number) {
    float* sums = reinterpret_cast<float*>(memory);
    sums[threadIdx.x] = number;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    return sums[0];
}
static_assert((THREADS & (THREADS - 1)) == 0, "threads are halved");

// Leaves the sum of squares of each piece of the gradients.
extern "C" __global__ void __launch_bounds__(THREADS)
add_squares(const Tensors given, float* squares) {
    const Piece piece = own_piece(given);
    const float* gradients = static_cast<const float*>(given.second[piece.tensor]);
    float sum = 0;
#pragma unroll 8
    for (int i = piece.begin + threadIdx.x; i < piece.end; i += THREADS) sum += gradients[i] * gradients[i];
    sum = add_threads(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// Updates weights and velocities; the rate is in memory, where a captured step finds a new one. If there are squares, of
// so many pieces, the norm of all gradients together is clipped to `longest`.
extern "C" __global__ void __launch_bounds__(THREADS)
descend(const Tensors given, const float* rate, float momentum, float decay, const float* squares, int pieces,
        float longest) {
    const Piece piece = own_piece(given);
    float factor = 1;
    if (squares != nullptr) {
        float sum = 0;
        for (int i = threadIdx.x; i < pieces; i += THREADS) sum += squares[i];
        const float fitting = longest / (sqrtf(add_threads(sum)) + 1e-6f);
        if (!(fitting > 1)) factor = fitting;  // also if it is not a number
    }
    float* weights = static_cast<float*>(given.first[piece.tensor]);
    const float* gradients = static_cast<const float*>(given.second[piece.tensor]);
    float* velocities = static_cast<float*>(given.third[piece.tensor]);
#pragma unroll 8
    for (int i = piece.begin + threadIdx.x; i < piece.end; i += THREADS) {
        const float velocity = momentum * velocities[i] + (factor * gradients[i] + decay * weights[i]);
        velocities[i] = velocity;
        weights[i] -= *rate * velocity;
    }
}

// Rounds numbers to bfloat16; each tensor has an even count.
extern "C" __global__ void __launch_bounds__(THREADS)
round_numbers(const Tensors given) {
    const Piece piece = own_piece(given);
    const float* numbers = static_cast<const float*>(given.first[piece.tensor]);
    word* rounded = static_cast<word*>(given.second[piece.tensor]);
#pragma unroll 8
    for (int i = piece.begin / 2 + threadIdx.x; i < piece.end / 2; i += THREADS)
        rounded[i] = pack(numbers[2 * i], numbers[2 * i + 1]);
}
