"""Whether runs of this process use a device side by side, which changes how kernels are launched.

It changes no result: each way to launch a kernel adds in the same order.
"""

import torch

from distillmatch.concurrency import device_is_shared
from distillmatch.fast.compiled import device_properties

LARGE_BATCH = 128
"""Images from which on a batch's kernels fill a device, measured on an H200 at 32 pixels."""


def programs_at_most(device: torch.device, images: int) -> int:
    """Return how many programs of a kernel that each fill a multiprocessor are launched for images.

    Beside other runs some are left to these: their kernels then start before ours have ended.
    """
    processors = int(device_properties(device).multi_processor_count)
    if not device_is_shared():
        return processors
    return max(1, processors // (2 if images >= LARGE_BATCH else 4))
