// An image in shared memory, with room beside it for what the next operation makes of it: how it comes there and leaves as
// a view, what is drawn for it, and the ways in which a program's threads go through it.
//
// A function that changes the image ends when all threads are done with it.
//
// Constants that the compiler is given:
//   WARPS                   of a program
//   KEPT                    bytes of shared memory before the images
//   DRAWS, DRAW_...         how many draws there are, and the number of each
//   OPERATIONS              how many operations there are

typedef unsigned char byte;
typedef unsigned long long draw;  // 64 random bits

constexpr int LANES = 32, THREADS = WARPS * LANES, CHANNELS = 3, LEVELS = 256, UNIFORM_BITS = 24;
constexpr draw STEP = 0x9E3779B97F4A7C15ull;
static_assert(DRAWS <= THREADS, "a thread makes one draw at most");
static_assert(DRAWS * sizeof(draw) + WARPS * sizeof(word) <= KEPT, "the images lie behind draws and sums");

extern __shared__ uint4 memory[];

// A number of [0, 1) becomes low + span x number.
struct Spread {
    float low, span;
};

// Of an operation: centre +- (low to low + span), or whole numbers from low to high.
struct Magnitude {
    float low, span, centre, high;
    int is_signed, is_whole;
};

struct Settings {
    float scales[CHANNELS], shifts[CHANNELS];  // of the normalization
    Spread brightness, contrast;               // of the jitter
    Magnitude magnitudes[OPERATIONS];
};

// The image at hand, by rows of pixels, and room for the next.
struct Picture {
    byte *pixels, *beside;
    int side;
    const draw* draws;
    word* sums;  // one a warp

    __device__ int values() const { return CHANNELS * side * side; }
    __device__ byte* at(int row, int column) const { return pixels + CHANNELS * (row * side + column); }
    __device__ byte* beside_at(int row, int column) const { return beside + CHANNELS * (row * side + column); }
    __device__ void exchange_images() {
        byte* before = pixels;
        pixels = beside, beside = before;
    }
};

struct Place {
    int row, column;
};

__device__ __forceinline__ int lane_of_thread() { return threadIdx.x % LANES; }
__device__ __forceinline__ int warp_of_thread() { return threadIdx.x / LANES; }

// Draws

__device__ __forceinline__ draw mix(draw bits) {
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBull;
    return bits ^ bits >> 31;
}

__device__ __forceinline__ draw random_bits(draw key, draw position, int number) {
    return mix(mix(mix(position * STEP) + key) + (number + 1) * STEP);
}

__device__ __forceinline__ float uniform(draw bits) { return float(bits >> (64 - UNIFORM_BITS)) * 0x1p-24f; }
__device__ __forceinline__ bool coin(draw bits) { return bits >> 63; }
__device__ __forceinline__ int whole(draw bits, int count) {
    return int((bits >> (64 - UNIFORM_BITS)) * count >> UNIFORM_BITS);
}
__device__ __forceinline__ float spread(draw bits, const Spread& over) {
    return multiply_then_add(uniform(bits), over.span, over.low);
}

__device__ __forceinline__ float magnitude(const Magnitude& of, float share, bool negative) {
    if (of.is_whole) return fminf(floorf(share * of.span) + of.low, of.high);
    const float size = multiply_then_add(share, of.span, of.low);
    return (of.is_signed && negative ? -size : size) + of.centre;
}

// Ways through an image

// A warp has a row at a time, and its lanes the columns.
template <class Each>
__device__ __forceinline__ void for_own_pixels(int side, Each each) {
    for (int row = warp_of_thread(); row < side; row += WARPS)
        for (int column = lane_of_thread(); column < side; column += LANES) each(row, column);
}

// Makes each value what `change` makes of it and its channel; four lie together.
template <class Change>
__device__ __forceinline__ void change_values(const Picture& picture, Change change) {
    word* fours = reinterpret_cast<word*>(picture.pixels);
    for (int first = 4 * threadIdx.x; first < picture.values(); first += 4 * THREADS) {
        const word four = fours[first / 4];
        word changed = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) changed |= word(change(byte(four >> 8 * i), (first + i) % CHANNELS)) << 8 * i;
        fours[first / 4] = changed;
    }
    __syncthreads();
}

// Makes each pixel the one at the place that `from` tells; what is outside is black.
template <class From>
__device__ __forceinline__ void move_pixels(Picture& picture, From from) {
    const int side = picture.side;
    for_own_pixels(side, [&](int row, int column) {
        const Place place = from(row, column);
        const bool inside = place.row >= 0 && place.row < side && place.column >= 0 && place.column < side;
        const byte* found = inside ? picture.at(place.row, place.column) : picture.pixels;
        byte* to = picture.beside_at(row, column);
        for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = inside ? found[channel] : 0;
    });
    picture.exchange_images();
    __syncthreads();
}

// From memory and back

// Loads the program's image, and draws. An image and what may lie behind it take `room` bytes.
__device__ __forceinline__ Picture load_picture(const byte* images, const long long* positions, draw key, int side,
                                                int room) {
    draw* draws = reinterpret_cast<draw*>(memory);
    byte* first = reinterpret_cast<byte*>(memory) + KEPT;
    const Picture picture = {first, first + room, side, draws, reinterpret_cast<word*>(draws + DRAWS)};
    const int values = picture.values(), number = threadIdx.x;
    const byte* from = images + size_t(blockIdx.x) * values;
    if (values % 16 == 0 && reinterpret_cast<size_t>(from) % 16 == 0) {
        uint4* to = reinterpret_cast<uint4*>(picture.pixels);
        for (int i = number; i < values / 16; i += THREADS) to[i] = read_once(from + 16 * i);
    } else {
        for (int i = number; i < values; i += THREADS) picture.pixels[i] = byte(read_byte_once(from + i));
    }
    if (number < DRAWS) draws[number] = random_bits(key, positions[blockIdx.x], number);
    __syncthreads();
    return picture;
}

// Writes normalized values, as bfloat16 or as float32; `left` tells what is left of a value by its number: 1 or 0.
template <class Left>
__device__ __forceinline__ void write_view(const Picture& picture, const Settings& settings, void* views, int halves,
                                           Left left) {
    const int values = picture.values();
    const size_t before = size_t(blockIdx.x) * values;
    bfloat* rounded = static_cast<bfloat*>(views) + before;
    float* exact = static_cast<float*>(views) + before;
    for (int first = 4 * threadIdx.x; first < values; first += 4 * THREADS) {
        const word four = reinterpret_cast<const word*>(picture.pixels)[first / 4];
        float made[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int channel = (first + i) % CHANNELS;
            const float value = float(four >> 8 * i & 255);
            made[i] = multiply_then_add(value, settings.scales[channel], settings.shifts[channel]) * left(first + i);
        }
        if (values % 4 == 0 && halves) {
            const draw low = pack(made[0], made[1]), high = pack(made[2], made[3]);
            *reinterpret_cast<draw*>(rounded + first) = low | high << 32;
        } else if (values % 4 == 0) {
            store_four(exact + first, {made[0], made[1], made[2], made[3]});
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (first + i >= values) break;
                if (halves) rounded[first + i] = bfloat(pack(made[i], 0.0f));
                else exact[first + i] = made[i];
            }
        }
    }
}
