// Reads tensors of given sizes from the standard input and writes them after a step of descent by gradients of a given
// length at most, and rounded.

#include "device.h"

#include KERNEL

int main(int count, char** arguments) {
    Tensors given{};
    std::vector<std::vector<float>> weights, gradients, velocities;
    std::vector<std::vector<word>> rounded;
    int pieces = 0;
    given.tensors = count - 2;
    const auto read = [](size_t size) {
        std::vector<float> numbers(size);
        if (std::fread(numbers.data(), 4, size, stdin) != size) std::exit(1);
        return numbers;
    };
    for (int i = 0; i < given.tensors; ++i) {
        const int size = std::atoi(arguments[2 + i]);
        given.counts[i] = size, given.pieces[i] = pieces;
        pieces += (size + PIECE - 1) / PIECE;
        weights.push_back(read(size)), gradients.push_back(read(size)), velocities.push_back(read(size));
        rounded.emplace_back(size / 2);
    }
    for (int i = 0; i < given.tensors; ++i)
        given.first[i] = weights[i].data(), given.second[i] = gradients[i].data(), given.third[i] = velocities[i].data();
    const float rate = 0.1f;
    std::vector<float> squares(pieces);
    launch(pieces, 1, THREADS, [&] { add_squares(given, squares.data()); });
    const float longest = std::atof(arguments[1]);
    const float* cut = longest > 0 ? squares.data() : nullptr;
    launch(pieces, 1, THREADS, [&] { descend(given, &rate, 0.9f, 0.01f, cut, pieces, longest); });
    for (int i = 0; i < given.tensors; ++i) given.second[i] = rounded[i].data();
    launch(pieces, 1, THREADS, [&] { round_numbers(given); });
    for (int i = 0; i < given.tensors; ++i) {
        std::fwrite(weights[i].data(), 4, weights[i].size(), stdout);
        std::fwrite(velocities[i].data(), 4, velocities[i].size(), stdout);
        std::fwrite(rounded[i].data(), 4, rounded[i].size(), stdout);
    }
}
