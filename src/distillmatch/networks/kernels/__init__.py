"""Kernels for CUDA, and ways through a network made of them."""
