// Adds up the sums that the programs of another kernel have made.
//
// Constants that the compiler is given:
//   ADD_COLUMNS, ADD_THREADS  groups of four numbers that a program adds up, and its threads

__device__ __forceinline__ void add_four(float4& sum, float4 more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

// A program has ADD_COLUMNS groups of four numbers, and its rows of threads
// divide the shares. All loads of a thread are under way together.
extern "C" __global__ void __launch_bounds__(ADD_THREADS, 1)
add_up(const float4* __restrict__ partial, float4* __restrict__ total, int count, int shares) {
    extern __shared__ uint4 memory[];
    constexpr int ADD_ROWS = ADD_THREADS / ADD_COLUMNS;
    float4* sums = reinterpret_cast<float4*>(memory);
    const int row = threadIdx.x / ADD_COLUMNS, column = blockIdx.x * ADD_COLUMNS + threadIdx.x % ADD_COLUMNS;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < count) {
#pragma unroll 9
        for (int share = row; share < shares; share += ADD_ROWS)
            add_four(sum, partial[static_cast<long long>(share) * count + column]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (row > 0 || column >= count) return;
#pragma unroll
    for (int other = 1; other < ADD_ROWS; ++other) add_four(sum, sums[other * ADD_COLUMNS + threadIdx.x]);
    total[column] = sum;
}
