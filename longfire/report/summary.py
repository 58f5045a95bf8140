"""What a comparison's record says: its lines, means and deviations over seeds, and what was run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

Record = dict[str, Any]

COLORS = {  # on white, on black
    "fire": ("#dc143c", "#ff5470"),
    "kerple_log": ("#1f6fc4", "#62b0ff"),
    "alibi": ("#2b8a3e", "#63d17a"),
    "rope": ("#1d1d1f", "#f0f0f0"),
    "nope": ("#868e96", "#8d969e"),
    "t5": ("#8443c4", "#c59bf5"),
    "kerple_power": ("#0b8fa3", "#4fd6e8"),
    "sandwich": ("#8c564b", "#d3a091"),
    "learned": ("#857c00", "#dcd44d"),
    "sinusoidal": ("#c2379a", "#f79add"),
    "rope_pi": ("#4a6079", "#a3bdd9"),
    "yarn": ("#00705c", "#3fcfb0"),
    "fire-s": ("#f2789f", "#ffb3c7"),
}
SPARE = [("#e07b00", "#ffae42"), *(COLORS[name] for name in ("sinusoidal", "learned", "sandwich", "yarn", "rope_pi"))]
"""For what has no colour of its own, or shares an encoding with another line."""


@dataclass(frozen=True)
class Line:
    """One encoding over its seeds."""

    label: str
    encoding: str
    colors: tuple[str, str]
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Those that ended well."""

    def values(self, length: int) -> dict[int, float]:
        """Log perplexity by seed, of the seeds that have one."""
        return {
            run["seed"]: float(row["log_perplexity"])
            for run in self.runs
            for row in run.get("perplexity", {}).get("rows", ())
            if row["length"] == length and is_number(row.get("log_perplexity"))
        }


def is_number(value: object) -> bool:
    """Whether it is there and finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def lines_of(record: Record) -> list[Line]:
    """The encodings in the order of their first runs, those that failed too."""
    found: dict[str, Line] = {}
    spare = iter(SPARE * len(record["runs"]))
    taken: set[str] = set()
    for run in record["runs"]:
        encoding, label = run["encoding"], label_of(run)
        if label not in found:
            own = encoding in COLORS and encoding not in taken
            found[label] = Line(label, encoding, COLORS[encoding] if own else next(spare))
            taken.add(encoding)
        if "failed" not in run:
            found[label].runs.append(run)
    return list(found.values())


def texts_of(record: Record) -> dict[str, Record]:
    """A record for each text that was tested on: the corpus's own first, then the others by name."""
    found = {str((record["setting"].get("corpus") or {}).get("name") or "corpus"): record}
    for name in dict.fromkeys(name for run in record["runs"] for name in run.get("also", {})):
        runs = [{**run, "perplexity": run["also"].get(name, {})} if "also" in run else run for run in record["runs"]]
        found[f"{name}, the other one" if name in found else name] = {**record, "runs": runs}
    return found


def label_of(run: dict[str, Any]) -> str:
    """What a person calls the run's encoding."""
    return str(run.get("label") or run["encoding"])


def lengths_of(record: Record) -> list[int]:
    """The lengths that were asked for, in order."""
    return sorted(record["setting"]["lengths"])


def seeds_of(record: Record) -> list[int]:
    """The seeds that were asked for, or of the runs there are."""
    return list(record["setting"].get("seeds") or dict.fromkeys(run["seed"] for run in record["runs"]))


def mean_and_deviation(values: Iterable[float]) -> tuple[float | None, float | None]:
    """The mean, and the standard deviation (n − 1) if there are two or more."""
    numbers = list(values)
    return (fmean(numbers) if numbers else None), (stdev(numbers) if len(numbers) > 1 else None)


def over_seeds(values: Iterable[float], places: int = 3) -> str:
    """Mean ± deviation, or a dash."""
    mean, deviation = mean_and_deviation(values)
    if mean is None:
        return "–"
    return f"{mean:.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


def what_was_run(record: Record) -> str:
    """The experiment in one paragraph."""
    return " ".join(sentences(record))


def sentences(record: Record) -> list[str]:
    """What was run, sentence by sentence: who, how, and how it was tested."""
    if not record["runs"]:
        return ["No run has ended yet."]
    done, lines = [run for run in record["runs"] if "failed" not in run], lines_of(record)
    single, seeds, extended = len(lines) == 1, len(seeds_of(record)), extensions(done)
    these = "this position encoding" if single else "each of these position encodings"
    but = f" but {in_a_row([label for labels in extended.values() for label in labels])}" if extended else ""
    found = [
        f"{', '.join(line.label for line in lines)}: with {these}{but} a model{_of_size(done)} was trained from "
        f"scratch, with {f'{seeds} seeds' if seeds > 1 else 'one seed'}{_rate(record)}.",
        *_training(record, done, [line.encoding for line in lines if line.encoding.startswith("fire")]),
    ]
    found += [
        f"{in_a_row(labels)} {'are each' if len(labels) > 1 else 'is'} the model of {of}, extended to {to:,} tokens "
        f"and trained on for {steps:,} step{'s' * (steps > 1)} at that length."
        for (of, to, steps), labels in extended.items()
    ]
    lengths = ", ".join(f"{n:,}" for n in lengths_of(record))
    read = ON_DEV if record["setting"].get("split") == "dev" else HELD_OUT
    protocols = {run["perplexity"].get("protocol") for run in done if run.get("perplexity")}
    found += [
        f"Then {read} was read in sequences of {lengths} tokens, in one pass"
        f"{''.join(f'; {PROTOCOLS[name]}' for name in sorted(filter(None, protocols)) if name in PROTOCOLS)}.",
        "Log perplexity is the mean loss of a token, natural logarithm: lower is better.",
    ]
    if others := list(texts_of(record))[1:]:
        found.append(f"Other texts, none of whose documents is in the corpus, were read too: {', '.join(others)}.")
    if record.get("interrupted"):
        found.append("It was interrupted: what is missing was not run.")
    return found


def _training(record: Record, done: Sequence[dict[str, Any]], fires: Sequence[str]) -> list[str]:
    setting, recipe = record["setting"], record["setting"].get("recipe") or {}
    name, changed = (setting.get("corpus") or {}).get("name"), changes_to_fire(recipe)
    rate = recipe.get("position_rate") or 1
    how = [
        f"recipe {recipe['name']}" if recipe.get("name") else "",
        f"{recipe['steps']:,} steps" if recipe.get("steps") else "",
        f"the encodings' own parameters at {rate:g} times the model's learning rate, which the paper does not mention"
        if rate != 1
        else "",
    ]
    said = [
        f"Training was on sequences of {setting['trained_length']:,} tokens"
        f"{f' of {name}' if name else ''}{_amount(done)}"
        f"{''.join(f', {part}' for part in how if part)}."
    ]
    if fires and (changed or "start" in recipe):
        named = ", where options that are named do not say otherwise" if any(":" in label for label in fires) else ""
        said.append(f"FIRE {changed}{named}." if changed else "FIRE is as published, but for options that are named.")
    return said


def extensions(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, int, int], list[str]]:
    """Of whose model, to which length and in how many steps → the labels of those that were extended so."""
    found: dict[tuple[str, int, int], dict[str, None]] = {}
    for run in runs:
        if made := run.get("extended"):
            found.setdefault((made["from"], made["to"], made["steps"]), {})[label_of(run)] = None
    return {made: list(labels) for made, labels in found.items()}


HELD_OUT, ON_DEV = "held-out text", "dev, a part of the text that was kept from training,"
PROTOCOLS = {
    "paper": "documents were cut at each length, so that longer lengths score tokens of longer documents",
    "paired": "the same tokens are scored at all lengths, with more or less text before them",
}


def changes_to_fire(recipe: dict[str, Any]) -> str:
    """What a recipe has of FIRE that is not as in the paper."""
    options = recipe.get("encoding_options") or {}
    parts = [
        f"begins as {recipe['start']}" if recipe.get("start") else "",
        f"has its horizon at {recipe['horizon'] * recipe['length']:,.0f} tokens" if recipe.get("horizon") else "",
        "is one for all layers" if recipe.get("share") else "",
        f"has {', '.join(f'{name}={value}' for name, value in options.items())}" if options else "",
    ]
    return in_a_row([part for part in parts if part])


def changes_in_rows(rows: Sequence[dict[str, Any]]) -> str:
    """The same of checkpoints on tasks: `FIRE (begins as kerple_log)`, or nothing."""
    found: list[str] = []
    for row in rows:
        far = row.get("horizon")
        if changed := changes_to_fire({"start": row.get("start"), "horizon": far and 1, "length": far}):
            found.append(f"{row['label']} ({changed})")
    return in_a_row(list(dict.fromkeys(found)))


def _rate(record: Record) -> str:
    rate = (record["setting"].get("recipe") or {}).get("learning_rate")
    return f", at a learning rate of {rate:g}" if rate else ""


def _of_size(runs: Sequence[dict[str, Any]]) -> str:
    sizes = sorted(run["parameters"] for run in runs if run.get("parameters"))
    if not sizes:
        return ""
    low, high = (amount(size) for size in (sizes[0], sizes[-1]))
    return f" of {low} parameters" if low == high else f" of {low} to {high} parameters"


def _amount(runs: Sequence[dict[str, Any]]) -> str:
    seen = [run["tokens_seen"] for run in runs if run.get("tokens_seen")]
    if not seen:
        return ""
    unique = [run["unique_tokens"] for run in runs if run.get("unique_tokens")]
    few = f", {amount(max(unique))} of them different" if unique and max(unique) < max(seen) else ""
    return f" ({amount(max(seen))} tokens seen{few})"


def amount(number: float) -> str:
    """1,234,567 as 1.23M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:,.0f}"


def in_a_row(words: Sequence[str]) -> str:
    """`a, b and c`; of nothing, nothing."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
