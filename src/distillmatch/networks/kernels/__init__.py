"""Triton kernels for CUDA; imported only where there is Triton."""
