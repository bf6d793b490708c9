// Reads weights, biases, means and variances of two layers; maps, shortcut, gradients of the activated maps and of the
// sum; and gradients of the means over an image's pixels. Writes factors and summands of both layers; what the first
// makes of the maps: sum, activated maps, signs; and what the gradients are before it, those of the means last.

#include "device.h"

#include KERNEL

int main(int, char** arguments) {
    const int images = std::atoi(arguments[1]), pixels = std::atoi(arguments[2]), channels = std::atoi(arguments[3]);
    const int threads = std::atoi(arguments[4]), blocks = std::atoi(arguments[5]), others = std::atoi(arguments[6]);
    const int groups = channels / 8, all = channels + others;
    const size_t numbers = static_cast<size_t>(images) * pixels * channels;
    const unsigned pieces = numbers / 8;
    const auto weights = read_numbers<float>(all), biases = read_numbers<float>(all), means = read_numbers<float>(all),
               variances = read_numbers<float>(all);
    const auto maps = read_numbers<bfloat>(numbers), shortcut = read_numbers<bfloat>(numbers);
    const auto given = read_numbers<bfloat>(numbers), total_gradient = read_numbers<bfloat>(numbers);
    const auto of_means = read_numbers<bfloat>(images * channels);
    std::vector<float> scales(all), shifts(all);
    std::vector<bfloat> sum(numbers), activated(numbers), result(numbers), result_of_means(numbers);
    std::vector<unsigned char> signs(pieces);
    Layers layers = {};
    for (int layer = 0; layer < 2; ++layer) {
        const int first = layer * channels;
        layers.weights[layer] = weights.data() + first, layers.biases[layer] = biases.data() + first;
        layers.means[layer] = means.data() + first, layers.variances[layer] = variances.data() + first;
        layers.epsilons[layer] = layer ? 1e-3f : 1e-5f;
        layers.channels[layer] = layer ? others : channels, layers.firsts[layer] = first;
    }
    launch(2, 1, THREADS, [&] { make_coefficients(layers, scales.data(), shifts.data()); });
    launch(blocks, 1, threads, [&] {
        activate(maps.data(), shortcut.data(), sum.data(), activated.data(), signs.data(), scales.data(), shifts.data(),
                 groups, pieces);
    });
    launch(blocks, 1, threads, [&] {
        activate_backward(given.data(), total_gradient.data(), result.data(), signs.data(), scales.data(), groups, 1, pieces);
    });
    launch(blocks, 1, threads, [&] {
        activate_backward(of_means.data(), nullptr, result_of_means.data(), signs.data(), scales.data(), groups, pixels, pieces);
    });
    write_numbers(scales), write_numbers(shifts), write_numbers(sum), write_numbers(activated), write_numbers(signs);
    write_numbers(result), write_numbers(result_of_means);
    return 0;
}
