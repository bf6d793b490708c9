"""Whether runs of this process use a device side by side, which changes how kernels are launched.

It changes no result: each way to launch a kernel adds in the same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_blocks = 0


@contextmanager
def shared_device() -> Iterator[None]:
    """Say that within the block several runs use the device at once."""
    global _blocks  # noqa: PLW0603  all threads of the process are meant
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1


def device_is_shared() -> bool:
    """Tell whether several runs use the device at once."""
    return _blocks > 0
