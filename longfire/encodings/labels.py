"""Labels: encodings as typed on the command line.

`fire`, `fire-s` (one encoding for all layers), `fire:horizon=64,hidden_layers=1` (with options).
"""

import ast
import re
from pathlib import Path
from typing import Any

from longfire.encodings.registry import ENCODINGS, SHARED, has_starts, option_names, title_of
from longfire.validation import hint

OLD_INIT = "start"
"""Name of FIRE's option `init` in earlier releases, where `start=None` meant `init=random`."""
RECOMMENDED = "recommended"
"""In titles: FIRE initialised as Kerple-log, with its horizon at the training length."""
PUBLISHED = {"init": "random", "horizon": "None"}
"""FIRE's values in the paper."""


def parse_label(label: str) -> tuple[str, bool, dict[str, Any]]:
    """`fire-s:horizon=64` → the encoding's name, whether layers share it, and its options."""
    head, options = _split(label)
    return head.removesuffix(SHARED), head.endswith(SHARED), {key: parse_value(text) for key, text in options.items()}


def parse_value(text: str) -> Any:
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def canonical_label(label: str) -> str:
    """The form that records and folders use: no spaces, and `init` for `start`."""
    head, options = _split(label)
    typed = ",".join(f"{name}={value}" for name, value in options.items())
    return f"{head}:{typed}" if typed else head


def label_title(label: str, *, init: str | None = None, horizon: int | None = None, trained: int | None = None) -> str:
    """`fire-s:horizon=64` → `FIRE-S (horizon=64)`, for tables and plots. Plain `FIRE` is always FIRE as published.

    Args:
        label: an encoding as typed.
        init: the recipe's, for encodings that have this option, unless the label sets it.
        horizon: the same, in tokens.
        trained: training length in tokens. At this horizon, FIRE initialised as Kerple-log is `FIRE (recommended)`.
    """
    head, typed = _split(label)
    name = head.removesuffix(SHARED)
    known, recipe = option_names(ENCODINGS[name]), {"init": init, "horizon": horizon}
    options = {key: str(value) for key, value in recipe.items() if value is not None and key in known} | typed
    shown = [f"{key}={value}" for key, value in options.items() if PUBLISHED.get(key) != value]
    if name == "fire" and (options.get("init"), options.get("horizon")) == ("kerple_log", str(trained)):
        shown = [RECOMMENDED, *(one for one in shown if one.partition("=")[0] not in PUBLISHED)]
    return title_of(name) + ("-S" if head != name else "") + (f" ({', '.join(shown)})" if shown else "")


def label_file_name(label: str) -> str:
    """A portable name for the label's folders and pictures: letters, digits, `_`, `-` and `.` only."""
    return re.sub(r"[^\w.-]+", "-", canonical_label(label), flags=re.ASCII)


def run_folder(parent: Path, label: str, seed: int, prefix: str = "") -> Path:
    """The folder of a label's run, including one from an earlier release with `start` in its name."""
    name = label_file_name(label)
    old = name.replace("-init-random", f"-{OLD_INIT}-None").replace("-init-", f"-{OLD_INIT}-")
    current, earlier = (parent / f"{prefix}{each}-{seed}" for each in (name, old))
    return earlier if earlier.exists() and not current.exists() else current


def check_label(label: str) -> None:
    """Refuse unknown encodings and options, before anything is trained."""
    name, _, options = parse_label(label)
    if name not in ENCODINGS:
        head = label.partition(":")[0]
        separate = f"Pass encodings separately: {' or '.join(head.split(','))}." if "," in head else ""
        raise ValueError(
            f"there is no encoding named {label!r}. {separate or hint(head, [*ENCODINGS, f'fire{SHARED}'])}"
        )
    if label.rstrip().endswith((":", ",")):
        raise ValueError(f"{label!r} ends without an option; write {name}:option=value.")
    known = option_names(ENCODINGS[name])
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}. {hint(option, known)}")
        if value == "":
            raise ValueError(f"{label!r}: option {option!r} has no value; write {name}:{option}=…")


def _split(label: str) -> tuple[str, dict[str, str]]:
    """The part before the colon, and the options as typed, with `init` for `start`."""
    head, _, rest = label.partition(":")
    encoding = ENCODINGS.get(head.removesuffix(SHARED))
    options: dict[str, str] = {}
    for option in filter(None, rest.split(",")):
        name, _, value = (part.strip() for part in option.partition("="))
        if name == OLD_INIT and encoding is not None and has_starts(encoding):
            name = "init"
        if name == "init" and value == "None":
            value = "random"
        if name in options:
            raise ValueError(f"{label!r} sets {name!r} twice; remove one.")
        options[name] = value
    return head, options
