// Weak and strong views: a program makes the view of one image. What is random is a hash of key, position and the number of
// the draw, so a program draws by itself. Results are those of views/weak.py and views/strong.py to the bit.

__device__ __forceinline__ void jitter(const Picture& picture, const Settings& settings, int brightness_draw,
                                       int contrast_draw, int order_draw) {
    const float factor = spread(picture.draws[brightness_draw], settings.brightness);
    const bool bright_first = coin(picture.draws[order_draw]);
    if (bright_first) brightness(picture, factor);
    contrast(picture, spread(picture.draws[contrast_draw], settings.contrast));
    if (!bright_first) brightness(picture, factor);
}

static_assert(DRAW_FIRST_MAGNITUDE == DRAW_FIRST_OPERATION + 1 && DRAW_FIRST_SIGN == DRAW_FIRST_OPERATION + 2 &&
                  DRAW_SECOND_MAGNITUDE == DRAW_SECOND_OPERATION + 1 && DRAW_SECOND_SIGN == DRAW_SECOND_OPERATION + 2,
              "magnitude and sign follow the operation");

// Tells whether the square of half the side about a centre covers a line of the image.
__device__ __forceinline__ bool covers(int centre, int line, int side) {
    const int size = side / 2, step = line - (centre - size / 2);
    return step >= 0 && step < size;
}

extern "C" __global__ void __launch_bounds__(THREADS)
weak_views(const byte* images, const long long* positions, draw key, void* views, int side, int room, int halves,
           int padding, const Settings settings) {
    Picture picture = load_picture(images, positions, key, side, room);
    jitter(picture, settings, DRAW_WEAK_BRIGHTNESS, DRAW_WEAK_CONTRAST, DRAW_WEAK_ORDER);
    const bool flip = coin(picture.draws[DRAW_FLIP]);
    const int rows = whole(picture.draws[DRAW_CROP_ROW], 2 * padding + 1) - padding;
    const int columns = whole(picture.draws[DRAW_CROP_COLUMN], 2 * padding + 1) - padding;
    move_pixels(picture, [&](int row, int column) {
        return Place{row + rows, flip ? side - 1 - (column + columns) : column + columns};
    });
    write_view(picture, settings, views, halves, [](int) { return 1.0f; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
strong_views(const byte* images, const long long* positions, draw key, void* views, int side, int room, int halves,
             const Settings settings) {
    Picture picture = load_picture(images, positions, key, side, room);
    jitter(picture, settings, DRAW_STRONG_BRIGHTNESS, DRAW_STRONG_CONTRAST, DRAW_STRONG_ORDER);
#pragma unroll 1
    for (int number = DRAW_FIRST_OPERATION; number <= DRAW_SECOND_OPERATION;
         number += DRAW_SECOND_OPERATION - DRAW_FIRST_OPERATION) {
        const draw* drawn = picture.draws + number;
        const int operation = whole(drawn[0], OPERATIONS);
        operate(picture, operation, magnitude(settings.magnitudes[operation], uniform(drawn[1]), coin(drawn[2])));
    }
    const int row = whole(picture.draws[DRAW_CUTOUT_ROW], side), column = whole(picture.draws[DRAW_CUTOUT_COLUMN], side);
    write_view(picture, settings, views, halves, [&](int number) {
        const int line = number / (CHANNELS * side), across = number / CHANNELS - line * side;
        return covers(row, line, side) && covers(column, across, side) ? 0.0f : 1.0f;
    });
}
