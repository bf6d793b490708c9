// A library of the losses' kernels, which are launched as the driver does it: by name, with the addresses of arguments.

#include "device.h"

#include <string>
#include <utility>

#include KERNEL

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

extern "C" int run(const char* name, unsigned blocks, unsigned groups, unsigned threads, void** arguments, int count) {
    const Call call = {name, blocks, groups, threads, arguments, size_t(count)};
    const bool found = call.is("cross_entropy", cross_entropy) || call.is("divergence", divergence) ||
                       call.is("add_up", add_up) || call.is("join_labels", join_labels) ||
                       call.is("add_losses", add_losses);
    return found ? 0 : 1;
}
