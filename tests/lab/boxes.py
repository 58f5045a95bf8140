"""Tiny tasks to fine-tune on: questions about boxes, and three GLUE tasks."""

import json

from tests.tasks.rows import write

THINGS = ("moss", "tea", "salt", "rope", "ink", "wool")
ENTAILED = ("entailment", "not_entailment")


def box(number, split):
    thing = THINGS[number % len(THINGS)]
    text = f"What is in box {number}?\n\nBox {number} of the {split} room holds {thing}."
    return {"id": f"{split}-{number}", "input": text, "output": thing}


def sentence(task, number, split):
    row = {"id": f"{task}-{split}-{number}", "task": task}
    if task == "cola":
        wrong = number % 2
        text = f"cola sentence: {'Box the' if wrong else 'The box'} {number}."
        return {**row, "input": text, "output": ("acceptable", "unacceptable")[wrong]}
    if task == "rte":
        text = f"rte sentence1: Box {number}. sentence2: No box {number % 3}."
        return {**row, "input": text, "output": ENTAILED[number % 3 == 0]}
    text = f"multirc question: What? answer: {number} paragraph: Box {number // 4} is here, in the {split} room."
    return {**row, "input": text, "output": str(number % 2 == 0), "group": f"{split}-{number // 2}"}


def write_boxes(root):
    """All of narrative_qa, qasper without a train split; cola, rte and multirc."""
    for split, count in (("train", 24), ("validation", 7)):
        write(root / "scrolls" / "narrative_qa" / f"{split}.jsonl", [box(i, split) for i in range(count)])
        for task in ("cola", "rte", "multirc"):
            write(root / "glue" / task / f"{split}.jsonl.zst", [sentence(task, i, split) for i in range(count + 1)])
    write(root / "scrolls" / "qasper" / "validation.jsonl", [box(1, "validation")])
    return root


def record_in(folder):
    return json.loads((folder / "downstream.json").read_text())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
