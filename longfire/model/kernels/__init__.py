"""The model's Triton kernels."""
