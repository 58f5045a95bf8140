"""Triton's interpreter without what it does again and again, or only to report it in debug mode. Same results."""

from dataclasses import replace
from functools import cache

from triton.language import core
from triton.runtime import interpreter


def speed_up():
    """Take two thirds of the interpreter's time away."""
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patch_language_once()
    interpreter._get_np_dtype = numpy_dtype
    core.tensor.__init__ = initialise_tensor
    core.block_type.__init__ = initialise_block_type


def patch_language_once():
    """Replace the operations of `triton.language` once per module of kernels, not in each call of a function there.

    They stay replaced, as nothing in this process uses them outside of the interpreter.
    """
    patch, patched = interpreter._patch_lang, set()

    def patch_once(kernel):
        if kernel.__module__ not in patched:
            patched.add(kernel.__module__)
            patch(kernel)
        return interpreter._LangPatchScope()  # restores nothing

    interpreter._patch_lang = patch_once


get_numpy_dtype, numpy_dtypes = interpreter._get_np_dtype, {}


def numpy_dtype(type):
    """`_get_np_dtype`, which makes its table in every call."""
    name = type.scalar.name
    if name not in numpy_dtypes:
        numpy_dtypes[name] = get_numpy_dtype(type.scalar)
    return numpy_dtypes[name]


make_block_type = core.block_type.__init__


class Block:
    """What a `block_type` and its tensors know of their shape."""

    def __init__(self, sizes):
        make_block_type(self, core.int32, list(sizes))  # checks the sizes
        self.constant_numel = core.constexpr(self.numel)
        self.constant_shape = core.tuple([core.constexpr(size) for size in sizes])


block = cache(Block)
SCALAR = core.constexpr(1), core.tuple([])


def initialise_block_type(self, element_ty, shape):
    """`block_type.__init__`, but each shape is checked and described once."""
    self.block = block(tuple(getattr(size, "value", size) for size in shape))
    self.element_ty, self.shape, self.numel = element_ty, self.block.shape, self.block.numel
    self.name = f"<{self.shape}, {element_ty}>"


def initialise_tensor(self, handle, type):
    """`tensor.__init__`, but with constants of its shape made once."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    constants = (type.block.constant_numel, type.block.constant_shape) if type.is_block() else SCALAR
    self.numel, self.shape = constants
