"""Kernels for encodings whose bias takes many small operations. Imported on use, because they need Triton."""
