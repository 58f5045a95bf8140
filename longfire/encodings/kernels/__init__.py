"""Kernels of encodings whose bias is many small operations. Imported where they run: they need Triton."""
