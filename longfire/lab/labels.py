"""An encoding as it is typed: `fire`, `fire-s` (one for all layers), `fire:horizon=64,hidden_layers=1` (options).

One option is not the encoding's but of how it is trained: `fire:start=kerple_log`, what it begins as.
"""

import ast
import re
from typing import TYPE_CHECKING, Any

from longfire.encodings import ENCODINGS
from longfire.encodings.registry import SHARED, has_starts, option_names, title_of
from longfire.errors import hint

if TYPE_CHECKING:
    from longfire.training import Recipe

START = "start"


def file_name(label: str) -> str:
    """What its runs' folders and pictures are called: with letters, digits, _, - and . alone, as every system takes."""
    return re.sub(r"[^\w.-]+", "-", label, flags=re.ASCII)


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
        apart = f"Several are separated by spaces: {label.replace(',', ' ')}." if "," in head else ""
        raise ValueError(f"there is no encoding named {label!r}. {apart or hint(head, [*ENCODINGS, f'fire{SHARED}'])}")
    if label.rstrip().endswith((":", ",")):
        raise ValueError(f"{label!r} ends where an option should follow, such as {name}:option=value.")
    known = [*option_names(ENCODINGS[name]), *([START] if has_starts(ENCODINGS[name]) else [])]
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}. {hint(option, known)}")
        if value == "":
            raise ValueError(f"{label!r}: options have values, such as {name}:{option}=…, and {option!r} has none.")


def with_encoding(recipe: "Recipe", label: str) -> "Recipe":
    """A recipe with the encoding of a label, its options and its start."""
    name, shared, options = read_label(label)
    changes: dict[str, Any] = {"encoding": name, "share": shared or recipe.share}
    if START in options:
        changes["start"] = options.pop(START)
    if options:
        changes["encoding_options"] = {**recipe.encoding_options, **options}
    return recipe.but(**changes)


def written(label: str) -> str:
    """An encoding as a person writes it."""
    name, shared, _ = read_label(label)
    options = label.partition(":")[2].replace(" ", "").replace(",", ", ")
    return title_of(name) + ("-S" if shared else "") + (f" ({options})" if options else "")
