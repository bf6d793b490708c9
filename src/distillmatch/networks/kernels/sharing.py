"""Whether runs of this process use a device side by side, which changes how kernels are launched.

It changes no result: each way to launch a kernel adds in the same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from distillmatch.cuda.compiled import device_properties

LARGE_BATCH = 128
"""Images from which on a batch's kernels fill a device, measured on an H200 at 32 pixels."""

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


def programs_at_most(device: torch.device, images: int) -> int:
    """Return how many programs of a kernel that each fill a multiprocessor are launched for images.

    Beside other runs some are left to these: their kernels then start before ours have ended.
    """
    processors = int(device_properties(device).multi_processor_count)
    if not device_is_shared():
        return processors
    return max(1, processors // (2 if images >= LARGE_BATCH else 4))
