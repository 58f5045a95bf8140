"""Parse a row of a file or of the hub into an `Example`: question, document, reference answers."""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from longfire.tasks.suites import Example, Task

LAST_OPTION = re.compile(r"\n *\(D\).*?(?=\n\n)", re.DOTALL)
"""The last of QuALITY's four options, up to the blank line."""
OPTION_LETTER = re.compile(r"\n *\([A-D]\)")


def parse_example(task: Task, row: Any, where: str) -> Example:
    """An example from a row with `input` and `output`. `where` locates the row, and is its id by default."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a row must be an object with input and output, not {type(row).__name__}.")
    if row.get("task", task.name) != task.name:
        raise ValueError(f"{where} is a row of {row['task']}, not of {task.name}. Pass that task's file or folder.")
    question, document = SPLITTERS[task.form](task, _text(row, "input", where), where)
    if not question and not document:
        raise ValueError(f"{where}: the input is empty. Fix or remove the row.")
    group = row.get("group") or (document_key(document) if document else "")
    name = str(row.get("id", Path(where).name))  # without the folder: the dev split must not depend on the path
    return Example(name, question, document, _references(task, row, where), str(group), _options(task, row, question))


def document_key(document: str) -> str:
    """A short hash of a document."""
    return blake2b(document.encode(), digest_size=12).hexdigest()


def _text(row: Mapping[str, Any], field: str, where: str) -> str:
    if field not in row:
        raise ValueError(
            f"{where} has no field {field!r}, only {', '.join(map(repr, row)) or 'none'}. Put the text in 'input' "
            "and the correct answer in 'output'."
        )
    text = row[field]
    if not isinstance(text, str):
        raise ValueError(f"{where}: the field {field!r} must be text, not {type(text).__name__}. Fix the row.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise ValueError(f"{where}: a lone surrogate ({surrogate!r}) in {field!r}. Fix the row.") from error
    return text


def _references(task: Task, row: dict[str, Any], where: str) -> tuple[str, ...]:
    """The row's answer, and any others listed in its fields (ReCoRD)."""
    answers = [_text(row, "output", where), *map(str, _field(row, "answers"))]
    references = tuple(dict.fromkeys(answer.strip() for answer in answers))
    for reference in references:
        if not reference:
            raise ValueError(
                f"{where}: the reference is empty. Remove the row; if this is a test split without answers, use the "
                "validation split."
            )
        if task.choices and reference not in task.choices:
            raise ValueError(
                f"{where}: the answer {reference!r} is not one of {task.name}'s: {', '.join(task.choices)}."
            )
    return references


def _options(task: Task, row: dict[str, Any], question: str) -> tuple[str, ...]:
    """QuALITY's are in the question; ReCoRD's in the row's fields, since entities in the text may contain commas."""
    found = OPTION_LETTER.split(question)[1:] if task.form == "options" else _field(row, "entities")
    return tuple(str(option).strip() for option in found)


def _field(row: dict[str, Any], name: str) -> list[Any]:
    fields = row.get("fields")
    return list(fields.get(name, ())) if isinstance(fields, dict) else []


def _split_question(task: Task, text: str, where: str) -> tuple[str, str]:
    question, blank, document = text.strip().partition("\n\n")
    if not blank:
        raise ValueError(
            f"{where}: no blank line in the input. {task.name} needs the question, a blank line and the document."
        )
    return question.strip(), document.strip()


def _split_options(task: Task, text: str, where: str) -> tuple[str, str]:
    last = LAST_OPTION.search(text)
    if last is None:
        raise ValueError(
            f"{where}: no option (D) followed by a blank line in the input. {task.name} needs the question, the "
            "options (A) to (D), a blank line and the document."
        )
    return text[: last.end()].strip(), text[last.end() :].strip()


def _split_template(task: Task, text: str, where: str) -> tuple[str, str]:
    """The document keeps its label: `passage: …`."""
    if not task.document:
        return text.strip(), ""
    question, marker, document = text.partition(task.marker)
    if not marker:
        raise ValueError(f"{where}: no {task.marker!r} in the input, which should read {task.template!r}.")
    return question.strip(), (marker + document).strip()


SPLITTERS: dict[str, Callable[[Task, str, str], tuple[str, str]]] = {
    "question": _split_question,
    "options": _split_options,
    "document": lambda task, text, where: ("", text.strip()),
    "template": _split_template,
}
"""By `Task.form`: how to split an input into question and document."""


def hub_rows(task: Task, columns: Mapping[str, Any], where: str, split: str) -> Iterator[dict[str, Any]]:
    """A row in the hub's format → rows with `input` and `output`."""
    if "input" in columns:
        yield dict(columns)
    elif "questions" in columns:
        yield from _squality_rows(columns)
    else:
        yield _glue_row(task, columns, where, split)


def _squality_rows(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row per response; SQuALITY's own rows are a story, its questions and the responses to each."""
    story = columns["metadata"]["passage_id"]
    for question in columns["questions"]:
        for answer in question["responses"]:
            yield {
                "id": f"{story}_{question['question_number']}",
                "input": f"{question['question_text']}\n\n{columns['document']}",
                "output": answer["response_text"],
            }


def _glue_row(task: Task, columns: Mapping[str, Any], where: str, split: str) -> dict[str, Any]:
    written = {name: ", ".join(value) if _is_text_list(value) else value for name, value in columns.items()}
    try:
        if "span2_index" in columns:
            written["marked"] = _mark_pronoun(columns["text"], columns["span2_index"], columns["span2_text"], where)
        text = task.template.format(**written)
        answer = _label_name(task, columns["label"]) if task.choices else "".join(columns["answers"][:1])
    except KeyError as missing:
        raise ValueError(
            f"{where} has no column {missing}, only {', '.join(map(repr, columns))}. {task.name} fills "
            f"{task.template!r}."
        ) from missing
    index = columns.get("idx", where)
    numbers = [str(number) for number in index.values()] if isinstance(index, dict) else [str(index)]
    row = {"id": "-".join([task.name, split, *numbers]), "input": text, "output": answer, "fields": dict(columns)}
    if isinstance(index, dict) and "answer" in index:  # MultiRC: paragraph, question, answer
        row["group"] = f"{split}-{index['paragraph']}-{index['question']}"
    return row


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _label_name(task: Task, label: Any) -> str:
    """A label of the hub by name; "" if hidden (−1, in test splits)."""
    if isinstance(label, int) and label < len(task.choices):
        return task.choices[label] if label >= 0 else ""
    return str(label)


def _mark_pronoun(text: str, index: int, pronoun: str, where: str) -> str:
    """WSC: put asterisks around the pronoun, in word `index` or the next one that contains it."""
    words = text.split(" ")
    for i in range(index, len(words)):
        found = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", words[i])
        if found:
            words[i] = f"{words[i][: found.start()]}*{pronoun}*{words[i][found.end() :]}"
            return " ".join(words)
    raise ValueError(f"{where}: no pronoun {pronoun!r} at or after word {index} of {text!r}. Fix the row.")
