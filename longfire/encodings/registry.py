"""Names to classes, and a constructor by name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from longfire.encodings.base import PositionEncoding
from longfire.validation import at_least, hint

ENCODINGS: dict[str, type[PositionEncoding]] = {}
"""Every encoding by its name. A file of this folder adds its own with `@register`; so may anybody's."""

BY_TRAINING = ("init", "init_L", "horizon", "scale", "trained_length", "target_length", "smooth_beyond")
"""Options that follow from how a model is trained and computed."""
SHARED = "-s"
"""After a name: one encoding for all layers. FIRE-S is `fire-s`."""
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
    num_heads: int | None = None,
    head_dim: int | None = None,
    width: int | None = None,
    max_length: int | None = None,
    **options: Any,
) -> PositionEncoding:
    """An encoding by name.

    Args:
        name: a key of `ENCODINGS`.
        num_heads: attention heads.
        head_dim: the size of a head.
        width: of the model.
        max_length: the number of positions, for encodings that have only so many (`learned`).
        options: of the encoding's constructor. FIRE's `width` is called `mlp_width` here.

    An encoding takes what it needs of the model's shape and ignores the rest, so one call serves them all.
    """
    if name not in ENCODINGS:
        one = str(name).removesuffix(SHARED)
        shared = f"One {one} for all layers of a model is {one!r} with share_position_encoding=True."
        remedy = shared if one in ENCODINGS else hint(name, ENCODINGS)
        raise ValueError(f"there is no encoding named {name!r}. {remedy}")
    cls = ENCODINGS[name]
    shape = {"num_heads": num_heads, "head_dim": head_dim, "width": width, "max_length": max_length}
    for key, value in shape.items():
        if value is not None:
            at_least(key, value, 1)
    known = option_names(cls)
    for option in options:
        if option not in known:
            own = hint(option, known) if known else "It has none."
            raise ValueError(f"{name!r} has no option {option!r}. {own}")
    required = [option for option, argument in known.items() if argument.default is argument.empty]
    given = {key for key, value in shape.items() if value is not None} | set(options)
    if missing := [key for key in (*cls.takes, *required) if key not in given]:
        needs = ", ".join(f"{key}=…" for key in missing)
        raise ValueError(f"{name!r} needs {' and '.join(missing)}: build_encoding({name!r}, …, {needs}).")
    arguments = {known[option].name: value for option, value in options.items()}
    return cls(**{key: shape[key] for key in cls.takes}, **arguments)


def title_of(name: str) -> str:
    """An encoding as a person writes it."""
    return ENCODINGS[name].title or ENCODINGS[name].__name__


def has_starts(encoding: type[PositionEncoding]) -> bool:
    """Whether it has the option `init`, a choice of what it begins as, which recipes call `start`."""
    return hasattr(encoding, "init_as") and "init" in option_names(encoding)


def option_names(cls: type[PositionEncoding]) -> dict[str, inspect.Parameter]:
    """What may be given to `build_encoding` as an option → the constructor's argument for it."""
    if cls.__init__ is nn.Module.__init__:
        return {}
    aliases = {argument: option for option, argument in cls.aliases.items()}
    arguments = inspect.signature(cls).parameters.values()
    return {aliases.get(a.name, a.name): a for a in arguments if a.name not in cls.takes}


def changed_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of an encoding's options those that make it another: not as usual, and not what training sets.

    What a record names may not be known here, or no longer.
    """
    known = option_names(ENCODINGS[name]) if name in ENCODINGS else {}
    usual = {key: option.default for key, option in known.items()}
    own = {key: value for key, value in options.items() if key not in BY_TRAINING}
    return {key: value for key, value in own.items() if key not in usual or value != usual[key]}
