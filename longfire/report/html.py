"""Self-contained HTML pages: style, scripts and data inline, nothing loaded from the network."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from longfire.atomic_io import write_whole

TEMPLATES = Path(__file__).parent / "templates"
UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
"""JSON escapes for characters that could end a script element or a line of it."""


def write_page(path: Path, *, title: str, body: str, data: object, scripts: Sequence[str], style: str = "") -> None:
    """Write a page atomically.

    Args:
        path: the file; its folder is created if necessary.
        title: plain text.
        body: escaped HTML.
        data: data for the scripts, written as JSON.
        scripts: files in the templates folder, in order.
        style: CSS to append to page.css.
    """
    text = Template(_template("page.html")).substitute(
        title=escape(title),
        style=_template("page.css") + style,
        body=body,
        data=json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(UNSAFE),
        script="\n".join(_template(name) for name in ("charts.js", *scripts)),
    )
    write_whole(path, text)


def section(name: str, title: str, about: str, content: str = "") -> str:
    """A section with a heading and an explanation (plain text), and content (escaped HTML)."""
    soft = f'<p class="soft">{escape(about)}</p>' if about else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{soft}{content}</section>'


def colors_css(colors: Mapping[str, tuple[str, str]]) -> str:
    """A CSS class per colour, with variants for light and dark mode."""
    light, dark = ("".join(f".{name}{{--c:{pair[i]}}}" for name, pair in colors.items()) for i in (0, 1))
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n"


def facts_table(facts: Mapping[str, Any]) -> str:
    """Names and values as an HTML table; nested names are joined by dots."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(display(value))}</td></tr>" for name, value in _flat(facts))
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def settings_section(blocks: Mapping[str, Mapping[str, Any]]) -> str:
    """The last section of a page: tables of facts, by title. Empty ones are left out."""
    shown = "".join(
        f"<details><summary>{title}</summary>{facts_table(facts)}</details>" for title, facts in blocks.items() if facts
    )
    return section("settings", "Settings and versions", "", shown)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def display(value: object) -> str:
    """Format a value for display: `12,345`, `yes`, `1, 2`; a dash for nothing."""
    if value is None or value in ({}, []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(display, value))
    return str(value)


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
