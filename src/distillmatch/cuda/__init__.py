"""Kernels in CUDA: how they are compiled and launched, and what all of them build on."""
