// Launches kernels as the driver does it: by name, with the addresses of arguments.

#include <string>
#include <utility>

struct Call {
    const std::string name;
    unsigned blocks, groups, threads;
    void** arguments;
    size_t count;

    template <class... Arguments>
    bool is(const char* wanted, void (*kernel)(Arguments...)) const {
        if (name != wanted || count != sizeof...(Arguments)) return false;
        start(kernel, std::index_sequence_for<Arguments...>());
        return true;
    }

    template <class... Arguments, size_t... number>
    void start(void (*kernel)(Arguments...), std::index_sequence<number...>) const {
        launch(blocks, groups, threads, [&] { kernel(*static_cast<std::decay_t<Arguments>*>(arguments[number])...); });
    }
};
