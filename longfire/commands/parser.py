"""Command lines, read by argparse; a word that is not known is answered with the one that may have been meant."""

import argparse
import re
from typing import Any, NoReturn

from longfire.validation import hint

NO_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
"""As argparse says it."""


class Parser(argparse.ArgumentParser):
    """Commands within it are of its kind too."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{"allow_abbrev": False, **options})

    def parse_known_args(self, *given: Any, **options: Any) -> Any:
        """An unknown option is an error of the command it was given to, with the usage of that command."""
        namespace, unknown = super().parse_known_args(*given, **options)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """In a line where a word is not known, otherwise as usual."""
        if found := NO_CHOICE.fullmatch(message):
            known = [choice.strip("'") for choice in found[3].split(", ")]
            self.exit(2, f"{self.prog}: {found[1]} cannot be {found[2]!r}. {hint(found[2], known)}\n")
        super().error(message)
