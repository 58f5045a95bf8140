"""Triton's interpreter without what takes most of its time and changes no result."""

from dataclasses import replace

from triton.runtime import interpreter


def speed_up():
    """Skip overflow checks, which only debug mode reports, and replace `triton.language` by NumPy once."""
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patch, patched = interpreter._patch_lang, set()

    def patch_once(kernel):
        """The original does it in each call of each function of a module."""
        if kernel.__module__ not in patched:
            patched.add(kernel.__module__)
            patch(kernel)
        return interpreter._LangPatchScope()  # which restores nothing: only kernels use the language here

    interpreter._patch_lang = patch_once
