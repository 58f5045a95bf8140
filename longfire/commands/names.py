"""Names of files that say what they are of, so that one command's do not take another's place."""

from pathlib import Path


def name_of(folder: Path) -> str:
    """A folder's way from here, as a part of a file's name: `runs/fire-0` is `runs-fire-0`."""
    whole, here = folder.resolve(), Path.cwd()
    parts = whole.relative_to(here).parts if whole.is_relative_to(here) else whole.parts[1:]
    return "-".join(parts) or whole.name
