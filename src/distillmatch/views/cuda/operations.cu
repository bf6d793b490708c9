// The operations on the image at hand, named as those of views/operations.py, photometry.py and geometry.py, which say why
// each is as it is. Products that are not exact and sums are rounded apart, by multiply_then_add.
//
// Constants that the compiler is given, besides those of pictures.cu:
//   OPERATION_...           the number of each operation

// Photometry

__device__ __forceinline__ byte brightened(byte value, float factor) { return byte(int(fminf(value * factor, 255.0f))); }

__device__ __forceinline__ byte blended(byte value, float degenerate, float factor) {
    const float moved = multiply_then_add(value - degenerate, factor, degenerate);
    return byte(int(fminf(fmaxf(moved, 0.0f), 255.0f)));
}

__device__ __forceinline__ word luminance(const byte* pixel) {
    return (19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2] + 32768u) >> 16;
}

__device__ __forceinline__ float mean_luminance(const Picture& picture) {
    word sum = 0;
    for_own_pixels(picture.side, [&](int row, int column) { sum += luminance(picture.at(row, column)); });
    for (int mask = LANES / 2; mask > 0; mask /= 2) sum += exchange(sum, mask);
    if (lane_of_thread() == 0) picture.sums[warp_of_thread()] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += picture.sums[warp];
    const word pixels = picture.side * picture.side;
    return float((2 * sum + pixels) / (2 * pixels));
}

__device__ __forceinline__ void brightness(const Picture& picture, float factor) {
    change_values(picture, [&](byte value, int) { return brightened(value, factor); });
}

__device__ __forceinline__ void contrast(const Picture& picture, float factor) {
    const float grey = mean_luminance(picture);
    change_values(picture, [&](byte value, int) { return blended(value, grey, factor); });
}

__device__ __forceinline__ void colour(const Picture& picture, float factor) {
    for_own_pixels(picture.side, [&](int row, int column) {
        byte* pixel = picture.at(row, column);
        const float grey = float(luminance(pixel));
        for (int channel = 0; channel < CHANNELS; ++channel) pixel[channel] = blended(pixel[channel], grey, factor);
    });
    __syncthreads();
}

__device__ __forceinline__ void sharpness(Picture& picture, float factor) {
    const int last = picture.side - 1, down = CHANNELS * picture.side;
    if (picture.side < 3) return;
    for_own_pixels(picture.side, [&](int row, int column) {
        const byte* from = picture.at(row, column);
        byte* to = picture.beside_at(row, column);
        const bool inner = row > 0 && row < last && column > 0 && column < last;
        for (int channel = 0; channel < CHANNELS; ++channel, ++from) {
            word sum = 4 * *from;  // five with the one below
            if (inner)
                for (int above = -down; above <= down; above += down)
                    sum += from[above - CHANNELS] + from[above] + from[above + CHANNELS];
            to[channel] = inner ? blended(*from, float((2 * sum + 13) / 26), factor) : *from;
        }
    });
    picture.exchange_images();
    __syncthreads();
}

__device__ __forceinline__ void solarize(const Picture& picture, float threshold) {
    const int limit = int(ceilf(threshold));
    change_values(picture, [&](byte value, int) { return byte(value >= limit ? 255 - value : value); });
}

__device__ __forceinline__ void posterize(const Picture& picture, float bits) {
    const int mask = 255 << (8 - int(bits));
    change_values(picture, [&](byte value, int) { return byte(value & mask); });
}

__device__ __forceinline__ void invert(const Picture& picture) {
    change_values(picture, [&](byte value, int) { return byte(255 - value); });
}

// Tables of what values become, one a channel, made of how often each occurs

// Both lie beside the image. A warp makes a channel's table, and a lane has eight levels of it.
constexpr int OWN_LEVELS = LEVELS / LANES, COUNTS_BYTES = CHANNELS * LEVELS * sizeof(word);

struct Channel {
    const word* counts;
    byte* table;
    int first;  // of the lane's levels
};

// Changes the image by the tables that `make` fills in for the lane's levels of a channel.
template <class Make>
__device__ __forceinline__ void change_by_tables(const Picture& picture, Make make) {
    word* counts = reinterpret_cast<word*>(picture.beside);
    byte* tables = picture.beside + COUNTS_BYTES;
    for (int level = threadIdx.x; level < CHANNELS * LEVELS; level += THREADS) counts[level] = 0;
    __syncthreads();
    for (int number = threadIdx.x; number < picture.values(); number += THREADS)
        count_up(counts + number % CHANNELS * LEVELS + picture.pixels[number]);
    __syncthreads();
    for (int channel = warp_of_thread(); channel < CHANNELS; channel += WARPS)
        make(Channel{counts + channel * LEVELS, tables + channel * LEVELS, lane_of_thread() * OWN_LEVELS});
    __syncthreads();
    change_values(picture, [&](byte value, int channel) { return tables[channel * LEVELS + value]; });
}

__device__ __forceinline__ int darkest(const Channel& channel) {
    word found = LEVELS;
    for (int level = channel.first + OWN_LEVELS - 1; level >= channel.first; --level)
        if (channel.counts[level]) found = level;
    for (int mask = LANES / 2; mask > 0; mask /= 2) found = min(found, exchange(found, mask));
    return found;
}

__device__ __forceinline__ int brightest(const Channel& channel) {
    word found = 0;
    for (int level = channel.first; level < channel.first + OWN_LEVELS; ++level)
        if (channel.counts[level]) found = level;
    for (int mask = LANES / 2; mask > 0; mask /= 2) found = max(found, exchange(found, mask));
    return found;
}

// Returns how many values are below the lane's levels.
__device__ __forceinline__ word below(const Channel& channel) {
    word sum = 0, before = 0;
    for (int i = 0; i < OWN_LEVELS; ++i) sum += channel.counts[channel.first + i];
    for (int mask = 1; mask < LANES; mask *= 2) {
        const word of_others = exchange(sum, mask);
        if (lane_of_thread() & mask) before += of_others;
        sum += of_others;
    }
    return before;
}

__device__ __forceinline__ void autocontrast(const Picture& picture) {
    change_by_tables(picture, [](const Channel& channel) {
        const double low = darkest(channel), high = brightest(channel);
        const double scale = high == low ? 1.0 : 255.0 / (high - low), shift = high == low ? 0.0 : -low * scale;
        for (int level = channel.first; level < channel.first + OWN_LEVELS; ++level)
            channel.table[level] = byte(int(fmin(fmax(multiply_then_add(double(level), scale, shift), 0.0), 255.0)));
    });
}

__device__ __forceinline__ void equalize(const Picture& picture) {
    change_by_tables(picture, [&](const Channel& channel) {
        const word pixels = picture.side * picture.side, step = (pixels - channel.counts[brightest(channel)]) / 255;
        word sum = below(channel);
        for (int level = channel.first; level < channel.first + OWN_LEVELS; ++level) {
            channel.table[level] = byte(step ? min((sum + step / 2) / step, 255u) : level);
            sum += channel.counts[level];
        }
    });
}

// Geometry

__device__ __forceinline__ void mirror(Picture& picture) {
    move_pixels(picture, [&](int row, int column) { return Place{row, picture.side - 1 - column}; });
}

__device__ __forceinline__ void shift(Picture& picture, int rows, int columns) {
    move_pixels(picture, [&](int row, int column) { return Place{row + rows, column + columns}; });
}

__device__ __forceinline__ int whole_steps(float share, int side) { return int(floor(double(share) * side + 0.5)); }

__device__ __forceinline__ int fixed(double number) { return int(floor(number * 65536 + 0.5)); }

// Reads pixel (x, y) at (ax + by + c, dx + ey + f).
__device__ __forceinline__ void affine(Picture& picture, double a, double b, double c, double d, double e, double f) {
    const int x = fixed(c + a * 0.5 + b * 0.5), x_across = fixed(a), x_down = fixed(b);
    const int y = fixed(f + d * 0.5 + e * 0.5), y_across = fixed(d), y_down = fixed(e);
    move_pixels(picture, [&](int row, int column) {
        return Place{(y + y_down * row + y_across * column) >> 16, (x + x_down * row + x_across * column) >> 16};
    });
}

__device__ __forceinline__ void rotate(Picture& picture, float degrees) {
    const double angle = degrees * (-3.141592653589793 / 180), centre = picture.side / 2.0;
    const double cosine = cos(angle), sine = sin(angle);
    const double c = multiply_then_add(-sine, centre, multiply_then_add(-cosine, centre, centre));
    const double f = multiply_then_add(-cosine, centre, multiply_then_add(sine, centre, centre));
    affine(picture, cosine, sine, c, -sine, cosine, f);
}

__device__ __forceinline__ void operate(Picture& picture, int operation, float by) {
    switch (operation) {
        case OPERATION_SHEAR_X: return affine(picture, 1, by, 0, 0, 1, 0);
        case OPERATION_SHEAR_Y: return affine(picture, 1, 0, 0, by, 1, 0);
        case OPERATION_TRANSLATE_X: return shift(picture, 0, whole_steps(by, picture.side));
        case OPERATION_TRANSLATE_Y: return shift(picture, whole_steps(by, picture.side), 0);
        case OPERATION_ROTATE: return rotate(picture, by);
        case OPERATION_MIRROR: return mirror(picture);
        case OPERATION_AUTOCONTRAST: return autocontrast(picture);
        case OPERATION_EQUALIZE: return equalize(picture);
        case OPERATION_SOLARIZE: return solarize(picture, by);
        case OPERATION_POSTERIZE: return posterize(picture, by);
        case OPERATION_INVERT: return invert(picture);
        case OPERATION_CONTRAST: return contrast(picture, by);
        case OPERATION_COLOUR: return colour(picture, by);
        case OPERATION_BRIGHTNESS: return brightness(picture, by);
        case OPERATION_SHARPNESS: return sharpness(picture, by);
    }
}
