"""Pages that are one file: style, script and data inside, nothing from a network."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from longfire.atomic_io import write_whole

TEMPLATES = Path(__file__).parent / "templates"
UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
"""Letters that could end a script element or a line of it, as JSON may write them instead."""


def write_page(path: Path, *, title: str, body: str, data: object, scripts: Sequence[str], style: str = "") -> None:
    """Write a page whole or not at all.

    Args:
        path: the file; its folder is made if need be.
        title: plain text.
        body: HTML, escaped already.
        data: for the scripts, as JSON.
        scripts: files of the templates' folder, in order.
        style: CSS besides the pages' own.
    """
    text = Template(_template("page.html")).substitute(
        title=escape(title),
        style=_template("page.css") + style,
        body=body,
        data=json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(UNSAFE),
        script="\n".join(_template(name) for name in ("charts.js", *scripts)),
    )
    write_whole(path, text)


def colors_css(colors: Mapping[str, tuple[str, str]]) -> str:
    """A colour for each class, on white and on black."""
    light, dark = ("".join(f".{name}{{--c:{pair[i]}}}" for name, pair in colors.items()) for i in (0, 1))
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n"


def facts_table(facts: Mapping[str, Any]) -> str:
    """Names and values as an HTML table; what is inside another is named `outer.inner`."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(shown(value))}</td></tr>" for name, value in flat(facts))
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def flat(facts: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Names and values, with inner names after outer ones."""
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def shown(value: object) -> str:
    """A value as a person writes it; what is not there is a dash."""
    if value is None or value in ({}, []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return str(value)


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
