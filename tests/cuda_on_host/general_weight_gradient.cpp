// Reads maps and gradient from the standard input and writes what the kernels make of them: the gradient of the weights.

#include "device.h"

#include KERNEL

int main(int, char** arguments) {
    std::vector<int> given;
    for (char** argument = arguments + 1; *argument; ++argument) given.push_back(std::atoi(*argument));
    const int images = given[0], shares = given[1], shared_bytes = given[2], programs = given[3];
    const int channels_in = given[4], channels_out = given[5], height = given[6], width = given[7];
    const int out_height = given[8], out_width = given[9], stride = given[10], count = given[11];
    const int positions = images * out_height * out_width;
    const std::vector<bfloat> maps = read_numbers<bfloat>(size_t(images) * height * width * channels_in);
    const std::vector<bfloat> gradient = read_numbers<bfloat>(size_t(positions) * channels_out);
    if (std::max<int>(STAGES * STAGE, GROUPS * TILE_OUT * SUM_ROW * sizeof(float)) != shared_bytes) {
        std::fprintf(stderr, "%d bytes of shared memory are not what the kernel uses\n", shared_bytes);
        return 1;
    }
    const Shape shape = {positions, channels_in, channels_out, height, width, out_height, out_width, stride, count};
    // One number more than there is room for shows whether anything is written behind the last.
    std::vector<float> partial(size_t(shares) * count + 1, NAN);
    std::vector<float4> total(count / 4);
    launch(shares, programs, THREADS, [&] {
        general_weight_gradient(maps.data(), gradient.data(), partial.data(), shape);
    });
    if (!std::isnan(partial.back())) return 1;
    launch((count / 4 + ADD_COLUMNS - 1) / ADD_COLUMNS, 1, ADD_THREADS, [&] {
        add_up(reinterpret_cast<const float4*>(partial.data()), total.data(), count / 4, shares);
    });
    write_numbers(total);
}
