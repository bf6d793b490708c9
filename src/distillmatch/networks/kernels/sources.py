"""The CUDA sources of this layer."""

import functools

from distillmatch.cuda import compiled

FOLDER = "networks/kernels/cuda"

load_if_possible = functools.partial(compiled.load_if_possible, FOLDER)
