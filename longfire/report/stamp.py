"""What a picture is drawn of, written into it: one that is older than its record, or another's, can be told."""

import hashlib
import json
from pathlib import Path
from typing import Any

KEY = "record"


def digest(record: Any) -> str:
    """Of the content alone, however it is written."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def stamp(picture: Path, record: Any) -> None:
    """Write the record's digest into a PNG."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text(KEY, digest(record))
    with Image.open(picture) as image:
        image.load()
        image.save(picture, pnginfo=text)


def stamp_of(picture: Path) -> str | None:
    """The digest that is in a PNG."""
    from PIL import Image

    with Image.open(picture) as image:
        found: str | None = image.info.get(KEY)
    return found
