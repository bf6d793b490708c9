// Reads maps and weights from the standard input and writes what the kernel makes of them.

#include "device.h"

#include KERNEL

int main(int, char** arguments) {
    const int images = std::atoi(arguments[1]), blocks = std::atoi(arguments[2]), shared_bytes = std::atoi(arguments[3]);
    const size_t pixels = static_cast<size_t>(images) * HEIGHT * WIDTH;
    std::vector<bfloat> maps(pixels * CHANNELS_IN), weights(9 * CHANNELS_IN * CHANNELS_OUT), result(pixels * CHANNELS_OUT);
    if (std::fread(maps.data(), 2, maps.size(), stdin) != maps.size()) return 1;
    if (std::fread(weights.data(), 2, weights.size(), stdin) != weights.size()) return 1;
    if (WEIGHTS + PARTS * RING != shared_bytes) {
        std::fprintf(stderr, "%d bytes of shared memory are not what the kernel uses\n", shared_bytes);
        return 1;
    }
    const int steps = images * HEIGHT / STEP;
    launch(blocks, 1, THREADS, [&] { convolve(maps.data(), weights.data(), result.data(), steps); });
    return std::fwrite(result.data(), 2, result.size(), stdout) != result.size();
}
