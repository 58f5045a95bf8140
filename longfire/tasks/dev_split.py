"""Split dev from train by document."""

from collections import Counter
from hashlib import blake2b

from longfire.tasks.parse import document_key
from longfire.tasks.suites import Example
from longfire.validation import positive


def split_train_dev(examples: list[Example], share: float = 0.1, seed: int = 0) -> tuple[list[Example], list[Example]]:
    """Train and dev examples; dev gets about `share` of them, and at least one group if there are two.

    Groups are never split. Neither are documents with several groups, provided there are two documents. An example
    without a group is its own group. The assignment depends on seed and content, not on machine or order.
    """
    positive("share", share)
    if share >= 1:
        raise ValueError(f"share must be below 1, not {share}: something must be left to train on.")
    units = _units(examples)
    sizes = Counter(units)
    order = sorted(sizes, key=lambda unit: blake2b(f"{seed} {unit}".encode(), digest_size=16).digest())
    dev: set[str] = set()
    size = 0
    for unit in order[:-1]:  # train keeps at least one
        if dev and size + sizes[unit] / 2 > share * len(examples):
            break
        dev.add(unit)
        size += sizes[unit]
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example, unit in zip(examples, units, strict=True):
        parts[unit in dev].append(example)
    return parts


def _units(examples: list[Example]) -> list[str]:
    """The unit that each example belongs to: its document, else its group, else itself.

    Documents that differ only in whitespace count as one, named by the smallest of their keys.
    """
    from longfire.data.splits import content_hash  # imports numpy

    documents, contents = {"": ""}, {"": 0}
    for example in examples:
        if example.group not in documents:
            key = documents[example.group] = document_key(example.document) if example.document else ""
            contents.setdefault(key, content_hash(example.document.encode()))
    smallest: dict[int, str] = {}
    for key, content in sorted(contents.items()):
        smallest.setdefault(content, key)
    documents = {group: smallest[contents[key]] for group, key in documents.items()}
    several = len({documents[example.group] for example in examples}) > 1

    def unit(example: Example) -> str:
        if several and documents[example.group]:
            return f"document {documents[example.group]}"
        return f"group {example.group}" if example.group else f"example {example.id}"

    return [unit(example) for example in examples]
