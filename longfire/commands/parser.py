"""The argument parser: help with defaults, and suggestions for misspelt words and options."""

import argparse
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from longfire.validation import hint

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

Settings = dict[str, Any]
"""Arguments of `add_argument`."""
INTEGER: Settings = {"type": int, "metavar": "N"}
INTEGERS: Settings = {**INTEGER, "nargs": "+"}
LIST: Settings = {"nargs": "+", "action": "extend", "default": []}
"""Can be repeated."""
NUMBER: Settings = {"type": float, "metavar": "X"}
NAMES: Settings = {"nargs": "+", "metavar": "NAME"}
PATHS: Settings = {"nargs": "+", "metavar": "PATH"}
DTYPES = ("bfloat16", "float16", "float32")

INVALID_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
"""argparse's own message."""


class HelpFormatter(argparse.HelpFormatter):
    """Appends `(default: …)`, except for defaults of None, False or an empty list. Does not wrap indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith(" ") else fill(line, width, indent) for line in text.splitlines())

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        silent = default is None or default is False or default is argparse.SUPPRESS or default in ([], ())
        if action.help is None or silent or "(default:" in action.help or "%(default)" in action.help:
            return action.help
        shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
        return f"{action.help} (default: {shown.replace('%', '%%')})"


class Parser(argparse.ArgumentParser):
    """The parser of `longfire` and of every subcommand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": HelpFormatter, **kwargs})

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Report unknown options with the usage of the subcommand, not of `longfire`."""
        namespace, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return namespace, unknown

    def _suggestion(self, unknown: list[str]) -> str:
        """`. Did you mean --lengths?`"""
        flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        near = [match for flag in flags for match in get_close_matches(flag, self._option_string_actions, n=1)]
        return f". Did you mean {' and '.join(dict.fromkeys(near))}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """Report an invalid choice in one line, with the nearest valid one."""
        if found := INVALID_CHOICE.fullmatch(message):
            known = [choice.strip("'") for choice in found[3].split(", ")]
            self.exit(2, f"{self.prog}: {found[1]} cannot be {found[2]!r}. {hint(found[2], known)}\n")
        super().error(message)


def path_slug(folder: Path) -> str:
    """A folder's path, relative to the working directory if below it, as part of a file name: `runs-fire-0`."""
    path, here = folder.resolve(), Path.cwd()
    parts = path.relative_to(here).parts if path.is_relative_to(here) else path.parts[1:]
    return "-".join(parts) or path.name
