// Reads maps, a shortcut, the layer's numbers and gradients from the standard input, and writes what the kernels make
// of them: forward, then backward. Each is launched twice, as the counters of a launch must leave zeros behind, and then
// in two phases, which must come to the same.

#include "device.h"

#include <tuple>

#include KERNEL

int main(int, char** arguments) {
    int given[4 + 2 * MAX_GROUPS];
    for (int i = 0; i < 4 + 2 * MAX_GROUPS; ++i) given[i] = std::atoi(arguments[1 + i]);
    const int channels = given[0], room = given[1], adds = given[2], updating = given[3];
    Groups groups;
    for (int i = 0; i < MAX_GROUPS; ++i) groups.ends[i] = given[4 + i], groups.blocks[i] = given[4 + MAX_GROUPS + i];
    const int rows = groups.ends[MAX_GROUPS - 1], blocks = groups.blocks[MAX_GROUPS - 1];
    const int slices = channels / BLOCK_CHANNELS;
    const size_t count = static_cast<size_t>(rows) * channels;
    const auto maps = read_numbers<bfloat>(count), shortcut = read_numbers<bfloat>(adds ? count : 0);
    const auto weight = read_numbers<float>(channels), bias = read_numbers<float>(channels);
    const auto mean = read_numbers<float>(channels), variance = read_numbers<float>(channels);
    const auto gradient = read_numbers<bfloat>(count), total_gradient = read_numbers<bfloat>(adds ? count : 0);
    std::vector<bfloat> summed(maps), activated(count), of_maps(count);
    std::vector<float> updated_mean, updated_variance, coefficients(MAX_GROUPS * 4 * channels), of_weight(channels), of_bias(channels);
    std::vector<float> partial(blocks * 2 * channels);
    std::vector<word> counters(2 * slices);
    const auto forward = [&](int phases, int kept) {
        launch(blocks, slices, THREADS, [&, phases, kept] {
            normalize(maps.data(), adds ? shortcut.data() : nullptr, summed.data(), activated.data(), weight.data(),
                      bias.data(), updated_mean.data(), updated_variance.data(), coefficients.data(), partial.data(),
                      counters.data(), groups, channels, phases, kept, updating, 0.1f, 1e-5f);
        });
    };
    const auto backward = [&](int phases, int kept) {
        launch(blocks, slices, THREADS, [&, phases, kept] {
            normalize_backward(gradient.data(), adds ? total_gradient.data() : nullptr, summed.data(), of_maps.data(), coefficients.data(),
                      of_weight.data(), of_bias.data(), partial.data(), counters.data(), groups, channels, phases,
                      kept);
        });
    };
    const auto all = [&] { return std::tuple(summed, activated, of_maps, updated_mean, updated_variance, of_weight, of_bias); };
    std::vector<decltype(all())> made;
    for (int turn = 0; turn < 3; ++turn) {
        updated_mean = mean, updated_variance = variance;
        std::fill(activated.begin(), activated.end(), 0), std::fill(of_maps.begin(), of_maps.end(), 0);
        if (turn < 2) forward(SUM | CHANGE, room), backward(SUM | CHANGE, room);
        else forward(SUM, 0), forward(CHANGE, 0), backward(SUM, 0), backward(CHANGE, 0);
        made.push_back(all());
    }
    if (made[0] != made[1] || made[0] != made[2]) {
        std::fprintf(stderr, "a second launch, or one in two phases, came to something else\n");
        return 1;
    }
    write_numbers(summed), write_numbers(activated), write_numbers(of_maps);
    write_numbers(updated_mean), write_numbers(updated_variance), write_numbers(of_weight), write_numbers(of_bias);
}
