"""Records of downstream tasks, with invented numbers."""

from longfire.lab.reported import reported

PAPER = {name: reported(name) for name in ("scrolls", "glue", "narrative_qa")}


def one(task, score, length=2048, near=None, **more):
    found = {"task": task, "length": length, "score": score, "interval": [score - 1.25, score + 2.75], "examples": 1234}
    return {
        **found,
        "chance": None if near is None else 50.0,
        **({} if near is None else {"near_chance": near}),
        **more,
    }


def row(label, encoding, scores, **more):
    about = {"parameters": 23_100_000, "trained_length": 512, "tokens_seen": 105_000_000, "finetuned_length": None}
    return {"label": label, "encoding": encoding, **about, "scores": scores, **more}


def record(tasks, rows, lengths=(2048,), missing=None, select="dev", **more):
    mixtures = [{"name": task, "tasks": [task]} for task in tasks]
    recipe = {"name": "scrolls-small", "steps": 300, "batch_size": 32, "length": 2048, "seed": 0}
    setting = {"kind": "finetune", "name": "scrolls", "tasks": list(tasks), "mixtures": mixtures, "recipe": recipe}
    setting |= {"lengths": list(lengths), "length": 2048, "missing": missing or {}, "select": select, "limit": None}
    return {"setting": {**setting, "data": "data", "split": "validation"}, "rows": rows, **more}


def sweep(lengths=(512, 2048, 16384)):
    scores = {"fire": (6.0, 8.0, 9.0), "rope_pi": (4.0, 5.0, 0.5)}
    rows = [
        row(label, encoding, [one("narrative_qa", y, n) for n, y in zip(lengths, scores[encoding], strict=True)])
        for label, encoding in (("FIRE", "fire"), ("RoPE-PI", "rope_pi"))
    ]
    return record(["narrative_qa"], rows, lengths)
