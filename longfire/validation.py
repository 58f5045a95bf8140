"""Validate arguments, with messages that state the value and the remedy."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

P = ParamSpec("P")
R = TypeVar("R")


def hint(name: object, choices: Iterable[object]) -> str:
    """`Did you mean 'fire'? Known: …`"""
    known = list(choices)
    lower = {choice.lower(): choice for choice in known if isinstance(choice, str)}
    near = get_close_matches(str(name).lower(), lower, n=1)
    meant = f"Did you mean {lower[near[0]]!r}? " if near else ""
    return f"{meant}Known: {', '.join(map(str, known))}."


def one_of(what: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value that is not one of the choices."""
    known = list(choices)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        raise ValueError(f"{what} cannot be {value!r}. {hint(value, known)}")


def at_least(what: str, value: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what} must be a whole number, not {value!r} ({type(value).__name__}).")
    if int(value) < least:
        raise ValueError(f"{what} must be at least {least}, not {value}.")


def positive(what: str, value: object, zero_too: bool = False) -> None:
    """Refuse anything but a finite number above 0, or at least 0 with `zero_too`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number, not {value!r} ({type(value).__name__}).")
    number = float(value)
    if not (math.isfinite(number) and (number > 0 or (zero_too and number == 0))):
        raise ValueError(f"{what} must be {'at least' if zero_too else 'above'} 0 and finite, not {value!r}.")


KINDS: dict[Any, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a name"),
    dict: (dict, "a dictionary, such as {'horizon': 64}"),
    tuple: (tuple, "numbers, such as (0.9, 0.95)"),
    NoneType: (NoneType, "None"),
}
"""Type in an annotation → the type of its values, and how to describe them."""


def of_type(what: str, value: object, annotation: Any) -> None:
    """Refuse a value that does not fit a dataclass's annotation: one of `KINDS`, or a union of them."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if not any(_fits(value, kind) for kind in kinds):
        expected = " or ".join(KINDS[get_origin(kind) or kind][1] for kind in kinds)
        raise TypeError(f"{what} must be {expected}, not {value!r} ({type(value).__name__}).")


def _fits(value: object, kind: Any) -> bool:
    origin, members = get_origin(kind) or kind, get_args(kind)
    if origin is tuple and isinstance(value, tuple | list):  # a list, as in JSON
        return len(value) == len(members) and all(_fits(*pair) for pair in zip(value, members, strict=True))
    return isinstance(value, KINDS[origin][0]) and (origin is bool or not isinstance(value, bool))


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: accept keyword arguments by their old names (old="new") for one release, with a FutureWarning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            for old, new in names.items():
                if old in keywords:
                    if new in keywords:
                        raise TypeError(f"{function.__name__}: {old} is the old name of {new}; pass {new} only.")
                    message = f"{function.__name__}({old}=…) is now {new}=…; the next release drops the old name."
                    warnings.warn(message, FutureWarning, stacklevel=2)
                    keywords[new] = keywords.pop(old)
            return function(*arguments, **keywords)

        return call

    return decorate


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The entries of `now` that differ from `before`: name → (value before, value now)."""
    return {key: (before.get(key), value) for key, value in now.items() if value != before.get(key)}


def describe_differences(found: Mapping[str, tuple[Any, Any]]) -> str:
    """`steps: 3 there, 4 here`, for the first few."""
    return ", ".join(f"{key}: {before!r} there, {now!r} here" for key, (before, now) in list(found.items())[:4])


def error_summary(error: BaseException) -> str:
    """An error's type and first line, and its second line if the first ends with a colon."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])


def load_without_code(auto: Any, source: object, **options: Any) -> Any:
    """Call transformers' `auto.from_pretrained`, never running or offering to run a checkpoint's own code."""
    try:
        return auto.from_pretrained(source, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{source} needs its own Python code (auto_map in its configuration), and longfire does not run code from "
            "checkpoints. Use a model whose model_type transformers knows."
        ) from error
