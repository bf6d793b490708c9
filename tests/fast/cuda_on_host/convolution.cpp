// Reads maps, weights, factors, summands, what is added and signs from the standard input, and writes what the kernel
// makes of them: the result, what it normalized and the signs.

#include "device.h"

#include KERNEL

int main(int, char** arguments) {
    const int images = std::atoi(arguments[1]), blocks = std::atoi(arguments[2]), shared_bytes = std::atoi(arguments[3]);
    const size_t pixels = static_cast<size_t>(images) * HEIGHT * WIDTH, numbers = pixels * CHANNELS_OUT;
    const auto maps = read_numbers<bfloat>(pixels * CHANNELS_IN);
    const auto weights = read_numbers<bfloat>(9 * CHANNELS_IN * CHANNELS_OUT);
    const auto scales = read_numbers<float>(CHANNELS_OUT), shifts = read_numbers<float>(CHANNELS_OUT);
    const auto added = read_numbers<bfloat>(numbers);
    auto signs = read_numbers<unsigned char>(numbers / 8);
    std::vector<bfloat> result(numbers), sum(numbers);
    if (WEIGHTS + WARP_GROUPS * RING != shared_bytes) {
        std::fprintf(stderr, "%d bytes of shared memory are not what the kernel uses\n", shared_bytes);
        return 1;
    }
    const int steps = images * HEIGHT / STEP;
    const Epilogue epilogue = {scales.data(), shifts.data(), ADDS ? added.data() : nullptr, signs.data(), sum.data()};
    launch(blocks, 1, THREADS, [&] { convolve(maps.data(), weights.data(), result.data(), steps, epilogue); });
    write_numbers(result), write_numbers(sum), write_numbers(signs);
    return 0;
}
