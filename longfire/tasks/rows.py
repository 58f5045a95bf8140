"""A row of a file or of the hub → an example: question, document, answers."""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from longfire.tasks.task import Example, Task

OPTIONS = re.compile(r"\n *\(D\).*?(?=\n\n)", re.DOTALL)
"""The last of QuALITY's four options; a blank line ends it."""
LETTER = re.compile(r"\n *\([A-D]\)")
"""Before each of them."""


def example_of(task: Task, row: Any, where: str) -> Example:
    """From a row with `input` and `output`; `where` it is, for messages; file and line are its id if it has none."""
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not an object with fields but {type(row).__name__}. Write input and output.")
    if row.get("task", task.name) != task.name:
        raise ValueError(f"{where} is a row of {row['task']}, not of {task.name}. Give that task's file or folder.")
    question, document = FORMS[task.form](task, _text(row, "input", where), where)
    if not question and not document:
        raise ValueError(f"{where}: the input is empty. Mend the row or take it out.")
    group = row.get("group") or (document_key(document) if document else "")
    name = str(row.get("id", Path(where).name))  # without the folder: division must not depend on where data lie
    return Example(name, question, document, _references(task, row, where), str(group), _options(task, row, question))


def document_key(document: str) -> str:
    """A short name for a text: the same for the same text."""
    return blake2b(document.encode(), digest_size=12).hexdigest()


def _text(row: Mapping[str, Any], field: str, where: str) -> str:
    if field not in row:
        there = ", ".join(map(repr, row)) or "none"
        raise ValueError(
            f"{where} has no field {field!r}; the fields there are: {there}. A row has the text in 'input' and the "
            "right answer in 'output'."
        )
    text = row[field]
    if not isinstance(text, str):
        raise ValueError(f"{where}: the field {field!r} holds no text but {type(text).__name__}. Mend the row.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"{where}: half a character ({half!r}) in {field!r}. Mend the row.") from error
    return text


def _references(task: Task, row: dict[str, Any], where: str) -> tuple[str, ...]:
    """The row's answer, and first of several where all of them are in its fields (ReCoRD)."""
    answer = _text(row, "output", where).strip()
    fields = row.get("fields")
    others = fields.get("answers", ()) if isinstance(fields, dict) else ()
    references = tuple(dict.fromkeys([answer, *(str(other).strip() for other in others)]))
    for reference in references:
        if not reference:
            raise ValueError(
                f"{where}: the reference is empty, so nothing could be right. Take the row out; if this is a test "
                "split without answers, use the validation split."
            )
        if task.choices and reference not in task.choices:
            raise ValueError(
                f"{where}: the answer {reference!r} is not one of {task.name}'s: {', '.join(task.choices)}."
            )
    return references


def _options(task: Task, row: dict[str, Any], question: str) -> tuple[str, ...]:
    """QuALITY's are in the question, ReCoRD's in the row's fields, if it has them: joined, some have commas inside."""
    fields = row.get("fields")
    entities = fields.get("entities", ()) if isinstance(fields, dict) else ()
    found = LETTER.split(question)[1:] if task.form == "options" else entities
    return tuple(str(option).strip() for option in found)


def _question_first(task: Task, text: str, where: str) -> tuple[str, str]:
    question, blank, document = text.strip().partition("\n\n")
    if not blank:
        raise ValueError(
            f"{where}: no blank line in the input to divide question and document. {task.name}'s input is "
            "the question, a blank line and the document."
        )
    return question.strip(), document.strip()


def _options_too(task: Task, text: str, where: str) -> tuple[str, str]:
    last = OPTIONS.search(text)
    if last is None:
        raise ValueError(
            f"{where}: no option (D) with a blank line after it in the input. {task.name}'s input is the question, the "
            "options (A) to (D), a blank line and the document."
        )
    return text[: last.end()].strip(), text[last.end() :].strip()


def _document_alone(task: Task, text: str, where: str) -> tuple[str, str]:
    return "", text.strip()


def _by_template(task: Task, text: str, where: str) -> tuple[str, str]:
    """The document with its label: `passage: …`."""
    if not task.document:
        return text.strip(), ""
    question, marker, document = text.partition(task.marker)
    if not marker:
        raise ValueError(f"{where}: no {task.marker!r} in the input. It is made as {task.template!r}.")
    return question.strip(), (marker + document).strip()


FORMS: dict[str, Callable[[Task, str, str], tuple[str, str]]] = {
    "question": _question_first,
    "options": _options_too,
    "document": _document_alone,
    "template": _by_template,
}
"""How an input is divided into question and document."""


def rows_from_hub(task: Task, columns: Mapping[str, Any], where: str, split: str) -> Iterator[dict[str, Any]]:
    """A row as the hub has it → rows with `input` and `output`."""
    if "input" in columns:
        yield dict(columns)
    elif "questions" in columns:
        yield from _of_one_story(columns)
    else:
        yield _from_columns(task, columns, where, split)


def _of_one_story(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """SQuALITY's own form: a story, its questions, and the answers to each."""
    story = columns["metadata"]["passage_id"]
    for question in columns["questions"]:
        for answer in question["responses"]:
            yield {
                "id": f"{story}_{question['question_number']}",
                "input": f"{question['question_text']}\n\n{columns['document']}",
                "output": answer["response_text"],
            }


def _from_columns(task: Task, columns: Mapping[str, Any], where: str, split: str) -> dict[str, Any]:
    """GLUE and SuperGLUE."""
    written = {name: ", ".join(value) if _is_list(value) else value for name, value in columns.items()}
    try:
        if "span2_index" in columns:
            written["marked"] = _marked(columns["text"], columns["span2_index"], columns["span2_text"], where)
        text = task.template.format(**written)
        answer = _word(task, columns["label"]) if task.choices else "".join(columns["answers"][:1])
    except KeyError as missing:
        there = ", ".join(map(repr, columns))
        raise ValueError(
            f"{where} has no column {missing}; the columns there are: {there}. {task.name}'s text is made as "
            f"{task.template!r}."
        ) from missing
    index = columns.get("idx", where)
    numbers = [str(number) for number in index.values()] if isinstance(index, dict) else [str(index)]
    row = {"id": "-".join([task.name, split, *numbers]), "input": text, "output": answer, "fields": dict(columns)}
    if isinstance(index, dict) and "answer" in index:  # MultiRC: paragraph, question, answer
        row["group"] = f"{split}-{index['paragraph']}-{index['question']}"
    return row


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _word(task: Task, label: Any) -> str:
    """A label of the hub as a word; "" where it is kept secret (−1, in test splits)."""
    if isinstance(label, int) and label < len(task.choices):
        return task.choices[label] if label >= 0 else ""
    return str(label)


def _marked(text: str, index: int, pronoun: str, where: str) -> str:
    """WSC: asterisks around the pronoun that is meant, at a word's index or soon after it."""
    words = text.split(" ")
    for place in range(index, len(words)):
        found = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", words[place])
        if found:
            words[place] = f"{words[place][: found.start()]}*{pronoun}*{words[place][found.end() :]}"
            return " ".join(words)
    raise ValueError(
        f"{where}: the pronoun {pronoun!r} is neither word {index} of {text!r} nor after it. Mend the row."
    )
