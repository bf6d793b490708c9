// Reads maps, weights, the map beside the output, the gradient that is added and the layer's numbers from the standard
// input, and writes what the kernel makes of them. It is launched together twice (the counters must leave zeros behind),
// then in two launches, then with less room: all must come to the same.

#include "device.h"

#include <tuple>

#include KERNEL

int main(int, char** arguments) {
    constexpr int OTHERS = 7;
    int numbers[OTHERS + 3 * MOST_PARTS];
    for (int i = 0; i < OTHERS + 3 * MOST_PARTS; ++i) numbers[i] = std::atoi(arguments[1 + i]);
    const int room = numbers[0], room_beside = numbers[1], shared_bytes = numbers[2], change_bytes = numbers[3];
    const int threads = numbers[4], has_of_sum = numbers[5], moving = numbers[6];
    Parts parts, changing;
    for (int i = 0; i < MOST_PARTS; ++i) {
        const int* own = numbers + OTHERS + i;
        parts.ends[i] = changing.ends[i] = own[0];
        parts.programs[i] = own[MOST_PARTS], changing.programs[i] = own[2 * MOST_PARTS];
    }
    const int steps = parts.ends[MOST_PARTS - 1], programs = parts.programs[MOST_PARTS - 1];
    const int C = CHANNELS_OUT, parts_given = std::atoi(arguments[1 + OTHERS + 3 * MOST_PARTS]);
    const size_t pixels = static_cast<size_t>(steps) * STEP * WIDTH, count = pixels * C;
    const auto maps = read_numbers<bfloat>(pixels * CHANNELS_IN), weights = read_numbers<bfloat>(9 * CHANNELS_IN * C);
    const auto beside = read_numbers<bfloat>(BESIDE ? count : 0), of_sum = read_numbers<bfloat>(has_of_sum ? count : 0);
    const auto weight = read_numbers<float>(C), bias = read_numbers<float>(C);
    const auto mean = read_numbers<float>(C), variance = read_numbers<float>(C);
    const auto given_coefficients = read_numbers<float>(TRANSPOSED ? parts_given * 4 * C : 0);
    std::vector<bfloat> result(count), activated(count);
    std::vector<float> moved_mean, moved_variance, coefficients, of_weight(C), of_bias(C), partial(programs * SUMS);
    std::vector<word> counters(2);

    const auto ring_at = [](int rows) { return std::max<int>(WEIGHTS, rows * ROW_PIECES * 16); };
    const int change_needs = THREADS * 16 + 2 * SUMS * 4;
    if (threads != THREADS || shared_bytes != ring_at(room + room_beside) + PARTS * RING || change_bytes != change_needs) {
        std::fprintf(stderr, "%d threads, %d and %d bytes of shared memory are not what the kernels use\n", threads,
                     shared_bytes, change_bytes);
        return 1;
    }
    const auto start = [&](auto kernel, const Parts& of_launch, int phases, int rows, int rows_beside, int last) {
        launch(of_launch.programs[MOST_PARTS - 1], 1, THREADS, [=, &maps, &weights, &beside, &result, &activated, &of_sum, &weight, &bias, &moved_mean,
                                    &moved_variance, &coefficients, &of_weight, &of_bias, &partial, &counters] {
            kernel(maps.data(), weights.data(), beside.data(), result.data(), activated.data(),
                   has_of_sum ? of_sum.data() : nullptr, weight.data(), bias.data(), moved_mean.data(),
                   moved_variance.data(), coefficients.data(), of_weight.data(), of_bias.data(), partial.data(),
                   counters.data(), parts, of_launch, steps, phases, rows, rows_beside, last, moving, 0.1f, 1e-5f);
        });
    };
    const auto together = [&](int rows, int rows_beside) {
        start(convolve_and_normalize, parts, SUM | CHANGE, rows, rows_beside, ring_at(rows + rows_beside));
    };
    const auto all = [&] {
        return std::tuple(result, activated, moved_mean, moved_variance, coefficients, of_weight, of_bias);
    };
    std::vector<decltype(all())> made;
    for (int turn = 0; turn < 4; ++turn) {
        moved_mean = mean, moved_variance = variance, coefficients = given_coefficients;
        coefficients.resize(parts_given * 4 * C);
        std::fill(activated.begin(), activated.end(), 0), std::fill(result.begin(), result.end(), 0xffff);
        if (turn < 2) together(room, room_beside);
        else if (turn == 2) {
            start(convolve_and_normalize, parts, SUM, 0, 0, ring_at(0));
            start(change, changing, CHANGE, 0, 0, 0);
        } else together(3, TRANSPOSED ? 1 : 0);
        made.push_back(all());
    }
    for (int turn = 1; turn < 4; ++turn)
        if (made[0] != made[turn]) {
            std::fprintf(stderr, "turn %d came to something else\n", turn);
            return 1;
        }
    write_numbers(result), write_numbers(activated), write_numbers(moved_mean), write_numbers(moved_variance);
    write_numbers(of_weight), write_numbers(of_bias);
}
