"""The CUDA sources of this layer."""

import functools

from distillmatch.fast import compiled

FOLDER = "fast/cuda"

load_if_possible = functools.partial(compiled.load_if_possible, FOLDER)
