// What a warp does at once on tensor cores, how it reads and writes shared memory, and how thread blocks wait for each
// other.

typedef unsigned short bfloat;
typedef unsigned int word;  // two numbers of 16 bits, or an address in shared memory

__device__ __forceinline__ word shared_address(const void* pointer) {
    return static_cast<word>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory in the background, or writes zeros there.
__device__ __forceinline__ void copy_later(word to, const void* from, bool inside) {
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all copies but those of the last `OPEN` groups that were closed.
template <int OPEN>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(OPEN) : "memory");
}

// Loads four matrices of 8 x 8 numbers; each lane gives the address of a row of one of them.
__device__ __forceinline__ void load_matrices(word (&to)[4], word row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(word (&to)[4], word row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// Adds left (16 x 16, by rows) times right (16 x 8, by columns) to a sum.
__device__ __forceinline__ void multiply(float (&sum)[4], const word (&left)[4], word right0, word right1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// Rounds two numbers to bfloat16, the first to the lower half.
__device__ __forceinline__ word pack(float low, float high) {
    word packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ void write_shared(word at, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(at), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// Returns the value of the lane whose number differs in the bits of `mask`.
__device__ __forceinline__ word exchange(word value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

__device__ __forceinline__ float exchange(float value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

// The two numbers of a word, which are the upper halves of what they are as float.
__device__ __forceinline__ float low_of(word packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_of(word packed) { return __uint_as_float(packed & 0xffff0000u); }

// Makes what this thread has written visible to other blocks before it does anything else.
__device__ __forceinline__ void make_visible() { __threadfence(); }

// Returns what the counter was before.
__device__ __forceinline__ word count_up(word* counter) { return atomicAdd(counter, 1u); }

// Reads a counter, and sees what other blocks had made visible before they counted.
__device__ __forceinline__ word read_counter(const word* counter) {
    word value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Reads a number that another block has written during this launch.
__device__ __forceinline__ float read_again(const float* from) { return __ldcg(from); }

// Synchronizes the threads of one group of warps, counted from 0; other groups go on.
__device__ __forceinline__ void sync_warps(int group, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(group + 1), "r"(threads) : "memory");
}

// Stores four numbers at once.
__device__ __forceinline__ void store_four(float* to, float4 value) {
    asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};"
                 :
                 : "l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

// Returns where a share of `count` items begins: count x share / shares, without overflow.
__device__ __forceinline__ unsigned first_of_share(unsigned count, unsigned share, unsigned shares) {
    return count / shares * share + count % shares * share / shares;
}

// Rounds two numbers to bfloat16 if they are above zero, and makes zeros of the others.
__device__ __forceinline__ word pack_positive(float low, float high) {
    word packed;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Rounded once, as a compiler rounds the sum of a product where it may choose.
__device__ __forceinline__ float multiply_add(float left, float right, float sum) { return __fmaf_rn(left, right, sum); }

// Reads what is not read again. Volatile, as the compiler would delay the load until the value is used.
__device__ __forceinline__ uint4 read_once(const void* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

__device__ __forceinline__ word read_byte_once(const unsigned char* from) {
    word value;
    asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
}

// Approximate root and quotient, by single instructions.
__device__ __forceinline__ float near_root(float number) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(number));
    return root;
}

__device__ __forceinline__ float near_quotient(float number, float divisor) {
    float quotient;
    asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(number), "f"(divisor));
    return quotient;
}
