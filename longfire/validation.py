"""Messages for people: what was wrong, with the value, and what to do."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def hint(name: object, choices: Iterable[object]) -> str:
    """`Did you mean 'fire'? Known: …` for a name that is not among the choices."""
    known = list(choices)
    lower = {choice.lower(): choice for choice in known if isinstance(choice, str)}
    near = get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    meant = f"Did you mean {lower[near[0]]!r}? " if near else ""
    return f"{meant}Known: {', '.join(map(str, known))}."


def one_of(what: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value that is not among the choices."""
    known = list(choices)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        raise ValueError(f"{what} cannot be {value!r}. {hint(value, known)}")


def at_least(what: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what} must be a whole number, not {value!r} ({type(value).__name__}).")
    if int(value) < least:
        raise ValueError(f"{what} must be at least {least}, not {value}.")


def positive(what: str, value: object, zero_too: bool = False) -> None:
    """Refuse what is not a finite number above 0 (or 0, where that is allowed)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number, not {value!r} ({type(value).__name__}).")
    number = float(value)
    if not (math.isfinite(number) and (number > 0 or (zero_too and number == 0))):
        raise ValueError(f"{what} must be {'at least' if zero_too else 'above'} 0 and finite, not {value!r}.")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: keyword arguments by their old names, each with its new one, work for one release and warn."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **given: P.kwargs) -> R:
            for old, new in names.items():
                if old in given:
                    if new in given:
                        raise TypeError(f"{function.__name__}: {old} is an old name for {new}; give {new} alone.")
                    message = f"{function.__name__}({old}=…) is now {new}=…; the next release drops the old name."
                    warnings.warn(message, FutureWarning, stacklevel=2)
                    given[new] = given.pop(old)
            return function(*arguments, **given)

        return call

    return decorate


def unlike(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is other there than here: by name, the value there and the value here."""
    return {key: (there.get(key), value) for key, value in here.items() if value != there.get(key)}


def there_and_here(other: Mapping[str, tuple[Any, Any]]) -> str:
    """`steps: 3 there, 4 here`: the first few of what is unlike."""
    return ", ".join(f"{key}: {there!r} there, {here!r} here" for key, (there, here) in list(other.items())[:4])


def in_a_line(error: BaseException) -> str:
    """Kind and first line of an error, and the next line where the first only announces it."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])


def load_without_code(auto: Any, source: object, **options: Any) -> Any:
    """`auto.from_pretrained` of transformers, which neither runs code that comes with a checkpoint nor offers to."""
    try:
        return auto.from_pretrained(source, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"{source} needs Python code of its own (auto_map in its configuration), and longfire runs no code from a "
            "checkpoint. Use a model that transformers knows by its model_type."
        ) from error
