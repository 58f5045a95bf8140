"""Names to classes, and a constructor by name."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from longfire.encodings.base import PositionEncoding
from longfire.errors import at_least, hint

ENCODINGS: dict[str, type[PositionEncoding]] = {}
"""Every encoding by its name. A file of this folder adds its own with `@register`; so may anybody's."""

E = TypeVar("E", bound=type[PositionEncoding])


def register(name: str) -> Callable[[E], E]:
    """Class decorator: make an encoding known to `build_encoding` under a name."""

    def add(cls: E) -> E:
        if ENCODINGS.setdefault(name, cls) is not cls:
            raise ValueError(f"there is an encoding named {name!r} already: {ENCODINGS[name].__name__}.")
        return cls

    return add


def build_encoding(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    width: int | None = None,
    max_length: int | None = None,
    **options: Any,
) -> PositionEncoding:
    """An encoding by name, for a model of this shape: `width` is the model's, `max_length` its training length.

    The encoding takes what it needs of the shape; `options` are its constructor's own (FIRE's `width` is `mlp_width`).
    """
    if name not in ENCODINGS:
        raise ValueError(f"there is no encoding named {name!r}. {hint(name, ENCODINGS)}")
    cls = ENCODINGS[name]
    shape = {"num_heads": num_heads, "head_dim": head_dim, "width": width, "max_length": max_length}
    for key, value in shape.items():
        if value is not None:
            at_least(key, value, 1)
        elif key in cls.takes:
            raise ValueError(f"{name!r} needs {key}: build_encoding({name!r}, …, {key}=…).")
    known = option_names(cls)
    for option in options:
        if option not in known:
            own = hint(option, known) if known else "It has none."
            raise ValueError(f"{name!r} has no option {option!r}. {own}")
    arguments = {known[option]: value for option, value in options.items()}
    return cls(**{key: shape[key] for key in cls.takes}, **arguments)


def option_names(cls: type[PositionEncoding]) -> dict[str, str]:
    """What may be given to `build_encoding` as an option → the constructor's name for it."""
    aliases = {argument: option for option, argument in cls.aliases.items()}
    arguments = [name for name in inspect.signature(cls).parameters if name not in cls.takes]
    return {aliases.get(argument, argument): argument for argument in arguments}
