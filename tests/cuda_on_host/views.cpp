// A library of the views' kernels, and of two more: a single operation on images, whose magnitudes are given; and what is
// drawn, by itself.

#include "device.h"

#include "by_name.h"

#include KERNEL

void single_operation(const byte* images, const long long* positions, byte* changed, const float* magnitudes,
                      int operation, int side, int room) {
    Picture picture = load_picture(images, positions, 0, side, room);
    operate(picture, operation, magnitudes[blockIdx.x]);
    byte* to = changed + size_t(blockIdx.x) * picture.values();
    for (int i = threadIdx.x; i < picture.values(); i += THREADS) to[i] = picture.pixels[i];
}

// Writes for a position a thread the factors of the jitter, and the magnitudes that the operations would have.
void drawn_numbers(const long long* positions, draw key, float* numbers, const Settings settings) {
    const auto drawn = [&](int number) { return random_bits(key, positions[threadIdx.x], number); };
    float* own = numbers + threadIdx.x * (2 + OPERATIONS);
    own[0] = spread(drawn(DRAW_STRONG_BRIGHTNESS), settings.brightness);
    own[1] = spread(drawn(DRAW_STRONG_CONTRAST), settings.contrast);
    const float share = uniform(drawn(DRAW_SECOND_MAGNITUDE));
    for (int operation = 0; operation < OPERATIONS; ++operation)
        own[2 + operation] = magnitude(settings.magnitudes[operation], share, coin(drawn(DRAW_SECOND_SIGN)));
}

extern "C" int run(const char* name, unsigned blocks, unsigned groups, unsigned threads, void** arguments, int count) {
    const Call call = {name, blocks, groups, threads, arguments, size_t(count)};
    const bool found = call.is("weak_views", weak_views) || call.is("strong_views", strong_views) ||
                       call.is("single_operation", single_operation) || call.is("drawn_numbers", drawn_numbers);
    return found ? 0 : 1;
}
