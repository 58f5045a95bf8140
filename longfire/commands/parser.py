"""Command lines: help that shows defaults, and suggestions for misspelt words and options."""

import argparse
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from longfire.validation import hint

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

INVALID_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
"""argparse's message."""


class HelpFormatter(argparse.HelpFormatter):
    """Adds `(default: …)` to options that have one; a default of None, False or nothing is not mentioned."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        silent = default is None or default is False or default is argparse.SUPPRESS or default in ([], ())
        if action.help is None or silent or "(default:" in action.help or "%(default)" in action.help:
            return action.help
        shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
        return f"{action.help} (default: {shown.replace('%', '%%')})"


class Parser(argparse.ArgumentParser):
    """For `longfire` and all commands below it."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{"allow_abbrev": False, "formatter_class": HelpFormatter, **options})

    def parse_known_args(self, *given: Any, **options: Any) -> Any:
        """Report an unknown option with the usage of the command it was given to, not that of `longfire`."""
        namespace, unknown = super().parse_known_args(*given, **options)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return namespace, unknown

    def _suggestion(self, unknown: list[str]) -> str:
        """`. Did you mean --lengths?`"""
        flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        near = [match for flag in flags for match in get_close_matches(flag, self._option_string_actions, n=1)]
        return f". Did you mean {' and '.join(dict.fromkeys(near))}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """Answer an invalid choice in one line with the nearest valid one."""
        if found := INVALID_CHOICE.fullmatch(message):
            known = [choice.strip("'") for choice in found[3].split(", ")]
            self.exit(2, f"{self.prog}: {found[1]} cannot be {found[2]!r}. {hint(found[2], known)}\n")
        super().error(message)


def path_slug(folder: Path) -> str:
    """A folder's path from here as part of a file name: `runs-fire-0` for `runs/fire-0`."""
    path, here = folder.resolve(), Path.cwd()
    parts = path.relative_to(here).parts if path.is_relative_to(here) else path.parts[1:]
    return "-".join(parts) or path.name
