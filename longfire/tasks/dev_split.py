"""Train and dev, divided by document."""

from hashlib import blake2b

from longfire.tasks.rows import document_key
from longfire.tasks.task import Example
from longfire.validation import positive


def divide(examples: list[Example], share: float = 0.1, seed: int = 0) -> tuple[list[Example], list[Example]]:
    """Train and dev; dev gets about that share of the examples, at least one group if there are two.

    A group is never divided, and neither is a document on which there are several groups, if there are two documents.
    An example without a group is one of its own. Which part a group is in depends on seed and content, and on neither
    machine nor order.
    """
    positive("share", share)
    if share >= 1:
        raise ValueError(f"share must be below 1, not {share}: something must be left to train on.")
    units = _units(examples)
    order = sorted(set(units), key=lambda unit: blake2b(f"{seed} {unit}".encode(), digest_size=16).digest())
    sizes = dict.fromkeys(order, 0)
    for unit in units:
        sizes[unit] += 1
    dev: set[str] = set()
    taken = 0
    for unit in order[:-1]:  # train keeps one
        if dev and taken + sizes[unit] / 2 > share * len(examples):
            break
        dev.add(unit)
        taken += sizes[unit]
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example, unit in zip(examples, units, strict=True):
        parts[unit in dev].append(example)
    return parts


def _units(examples: list[Example]) -> list[str]:
    """What each example must not be divided from: its document, or its group, or itself.

    Documents that differ in whitespace alone are one, by the least of their keys.
    """
    from longfire.data.splits import content_hash  # which brings numpy

    documents, contents = {"": ""}, {"": 0}
    for example in examples:
        if example.group not in documents:
            key = documents[example.group] = document_key(example.document) if example.document else ""
            contents.setdefault(key, content_hash(example.document.encode()))
    named: dict[int, str] = {}
    for key, content in sorted(contents.items()):
        named.setdefault(content, key)
    documents = {group: named[contents[key]] for group, key in documents.items()}
    several = len({documents[example.group] for example in examples}) > 1
    return [
        f"document {documents[example.group]}"
        if several and documents[example.group]
        else f"group {example.group}"
        if example.group
        else f"example {example.id}"
        for example in examples
    ]
