"""Kernels for gradients on NVIDIA GPUs: compiled where they run, by NVRTC, and kept for next time.

Nothing here is needed to build the package, or on a machine without a GPU.
"""
