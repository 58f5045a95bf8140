"""An encoding as it is typed: `fire`, `fire-s` (one for all layers), `fire:horizon=64,hidden_layers=1` (options).

`start` is an older name for FIRE's option `init`, and `start=None` for `init=random`. Either can be typed; records and
folders of runs keep the older, so that runs are found again by both.
"""

import ast
import re
from typing import TYPE_CHECKING, Any

from longfire.encodings import ENCODINGS
from longfire.encodings.registry import SHARED, has_starts, option_names, title_of
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.training import Recipe

START, INIT = "start", "init"


def recorded(label: str) -> str:
    """The label as records and folders have it: with `start` for `init`."""
    name = label.partition(":")[0].removesuffix(SHARED)
    if name not in ENCODINGS or not has_starts(ENCODINGS[name]):
        return label
    start = r"([:,])\s*(?:init|start)\s*=\s*(random\b)?"
    return re.sub(start, lambda m: f"{m[1]}{START}={'None' if m[2] else ''}", label)


def file_name(label: str) -> str:
    """What its runs' folders and pictures are called: with letters, digits, _, - and . alone, as every system takes."""
    return re.sub(r"[^\w.-]+", "-", recorded(label), flags=re.ASCII)


def read_label(label: str) -> tuple[str, bool, dict[str, Any]]:
    """`fire-s:horizon=64` → the encoding's name, whether layers share one, and its options."""
    head, _, rest = label.partition(":")
    options: dict[str, Any] = {}
    for given in filter(None, rest.split(",")):
        name, _, value = (part.strip() for part in given.partition("="))
        if name in options:
            raise ValueError(f"{label!r} gives {name!r} twice. Leave one out.")
        options[name] = literal(value)
    return head.removesuffix(SHARED), head.endswith(SHARED), options


def literal(text: str) -> Any:
    """As Python reads it; what it cannot read is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_label(label: str) -> None:
    """Refuse what is not there, before anything is trained."""
    name, _, options = read_label(label)
    if name not in ENCODINGS:
        head = label.partition(":")[0]
        apart = f"Give each encoding by itself: {' or '.join(head.split(','))}." if "," in head else ""
        raise ValueError(f"there is no encoding named {label!r}. {apart or hint(head, [*ENCODINGS, f'fire{SHARED}'])}")
    if label.rstrip().endswith((":", ",")):
        raise ValueError(f"{label!r} ends where an option should follow, such as {name}:option=value.")
    known = [*option_names(ENCODINGS[name]), *([START] if has_starts(ENCODINGS[name]) else [])]
    if START in options and INIT in options:
        raise ValueError(f"{label!r} gives both start and init, two names for one option. Give {INIT} alone.")
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}. {hint(option, known)}")
        if value == "":
            raise ValueError(f"{label!r}: options have values, such as {name}:{option}=…, and {option!r} has none.")


def with_encoding(recipe: "Recipe", label: str) -> "Recipe":
    """A recipe with the encoding of a label and its options."""
    return recipe.but(**encoding_changes(recipe, label))


def encoding_changes(recipe: "Recipe", label: str) -> dict[str, Any]:
    """What a label changes in a recipe."""
    name, shared, options = read_label(label)
    if START in options:
        options[INIT] = options.pop(START)
    changes: dict[str, Any] = {"encoding": name, "share": shared or recipe.share}
    if options:
        changes["encoding_options"] = {**recipe.encoding_options, **options}
    return changes


def written(label: str) -> str:
    """An encoding as a person writes it."""
    name, shared, _ = read_label(label)
    options = label.partition(":")[2].replace(" ", "").replace(",", ", ")
    return title_of(name) + ("-S" if shared else "") + (f" ({options})" if options else "")
