// Reads maps and gradient from the standard input and writes what the kernels make of them: the gradient of the weights.

#include "device.h"

#include KERNEL

int main(int, char** arguments) {
    const int images = std::atoi(arguments[1]), shares = std::atoi(arguments[2]), shared_bytes = std::atoi(arguments[3]);
    const size_t pixels = static_cast<size_t>(images) * HEIGHT * WIDTH;
    std::vector<bfloat> maps(pixels * CHANNELS_IN), gradient(pixels * CHANNELS_OUT);
    if (std::fread(maps.data(), 2, maps.size(), stdin) != maps.size()) return 1;
    if (std::fread(gradient.data(), 2, gradient.size(), stdin) != gradient.size()) return 1;
    if (std::max<int>(WARP_GROUPS * RING, SETS * TILE_OUT * SUM_ROW * sizeof(float)) != shared_bytes) {
        std::fprintf(stderr, "%d bytes of shared memory are not what the kernel uses\n", shared_bytes);
        return 1;
    }
    const int fours = CHANNELS_OUT * 9 * CHANNELS_IN / 4, tiles = CHANNELS_OUT / TILE_OUT * TILES_IN;
    std::vector<float4> partial(static_cast<size_t>(shares) * fours), total(fours);
    launch(shares, tiles, THREADS, [&] {
        weight_gradient(maps.data(), gradient.data(), &partial[0].x, images / IMAGES * HEIGHT / STEP);
    });
    launch((fours + ADD_COLUMNS - 1) / ADD_COLUMNS, 1, ADD_THREADS, [&] {
        add_up(partial.data(), total.data(), fours, shares);
    });
    return std::fwrite(total.data(), sizeof(float4), total.size(), stdout) != total.size();
}
