// A library of the losses' kernels, which are launched as the driver does it: by name, with the addresses of arguments.

#include "device.h"

#include "by_name.h"

#include KERNEL

extern "C" int run(const char* name, unsigned blocks, unsigned groups, unsigned threads, void** arguments, int count) {
    const Call call = {name, blocks, groups, threads, arguments, size_t(count)};
    const bool found = call.is("cross_entropy", cross_entropy) || call.is("divergence", divergence) ||
                       call.is("add_up", add_up) || call.is("join_labels", join_labels) ||
                       call.is("add_losses", add_losses);
    return found ? 0 : 1;
}
