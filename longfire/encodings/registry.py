"""Register and build encodings by name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from longfire.encodings.base import PositionEncoding
from longfire.validation import at_least, hint

ENCODINGS: dict[str, type[PositionEncoding]] = {}
"""Every encoding by name. Add your own with `@register("name")`."""

BY_TRAINING = ("init", "init_L", "horizon", "scale", "trained_length", "target_length", "smooth_beyond")
"""Options that depend on how a model is trained and run."""
SHARED = "-s"
"""Suffix of names: one encoding shared by all layers. FIRE-S is `fire-s`."""
E = TypeVar("E", bound=type[PositionEncoding])


def register(name: str) -> Callable[[E], E]:
    """Class decorator: register an encoding by name, for `build_encoding` and the command line."""

    def add(cls: E) -> E:
        if ENCODINGS.setdefault(name, cls) is not cls:
            raise ValueError(f"the encoding name {name!r} is already taken by {ENCODINGS[name].__name__}.")
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
    """Build an encoding by name: `build_encoding("fire", num_heads=8, init_L=512)`.

    Encodings ignore the dimensions that they do not need, so one call works for all.

    Args:
        name: a key of `ENCODINGS`.
        num_heads: number of attention heads H.
        head_dim: head size D.
        width: the model's width C.
        max_length: number of positions, for encodings with a limit (`learned`).
        options: of the encoding's constructor. FIRE's `width` is called `mlp_width` here.
    """
    if name not in ENCODINGS:
        base = str(name).removesuffix(SHARED)
        shared = f"To share one encoding among all layers, use {base!r} with the model's share_position_encoding=True."
        remedy = shared if base in ENCODINGS else hint(name, ENCODINGS)
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
    """The display name of an encoding."""
    return ENCODINGS[name].title or ENCODINGS[name].__name__


def has_starts(encoding: type[PositionEncoding]) -> bool:
    """Whether an encoding has the option `init`."""
    return hasattr(encoding, "init_as") and "init" in option_names(encoding)


def option_names(cls: type[PositionEncoding]) -> dict[str, inspect.Parameter]:
    """The options of an encoding in `build_encoding`, each with its constructor parameter."""
    if cls.__init__ is nn.Module.__init__:
        return {}
    aliases = {argument: option for option, argument in cls.aliases.items()}
    arguments = inspect.signature(cls).parameters.values()
    return {aliases.get(a.name, a.name): a for a in arguments if a.name not in cls.takes}


def changed_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make this a separate variant: neither at their default nor in `BY_TRAINING`.

    Accepts encodings and options of old records that no longer exist.
    """
    known = option_names(ENCODINGS[name]) if name in ENCODINGS else {}
    defaults = {key: option.default for key, option in known.items()}
    chosen = {key: value for key, value in options.items() if key not in BY_TRAINING}
    return {key: value for key, value in chosen.items() if key not in defaults or value != defaults[key]}
