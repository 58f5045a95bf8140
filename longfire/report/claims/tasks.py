"""Sections 4.2 to 4.4: fine-tuning on long texts, NarrativeQA at growing context, GLUE and SuperGLUE."""

from collections.abc import Callable
from typing import Any

from longfire.report.claims.claim import MISSING, Claim, Finding, Step, by, found
from longfire.report.claims.names import NO_THRESHOLD, PLAIN
from longfire.report.claims.quote import AVERAGE, Quote
from longfire.report.claims.rows import FARTHEST, rows_of, stretched, tuned_on
from longfire.report.claims.scores import best_on, drops, higher, on_a_par, stays, stretched_is_worse
from longfire.report.summary import Record, join_words
from longfire.report.task_rows import papers_size

BASELINES = ("nope", "rope", "rope_pi", "alibi", "kerple_log", "t5")
NARRATIVE = ("512", "2048", "4096", "8192", "16384", "24576", "32768")
LEAD = 1.0
"""Points of FIRE's average above the best baseline's. In the paper 1.5 and, of large models, 1.01."""
CLOSE = 1.0
"""Points that the paper calls on a par, where its own four are within 0.96, or a slight loss, where it has 0.81."""
LITTLE = 0.5
"""Points that FIRE-S may cost on GLUE. In the paper it is 0.1."""


def drop_of_stretched(record: Record) -> list[Step]:
    """Of RoPE-PI stretched to the fine-tuning length."""
    return drops(record, stretched(record, 1))


def steady_if_stretched(record: Record) -> list[Step]:
    """Of RoPE-PI stretched as far as it is tested."""
    return stays(record, stretched(record, FARTHEST))


def steady_fire(record: Record) -> list[Step]:
    """Of FIRE, beyond the fine-tuning length."""
    return [step for rows in rows_of(record, "fire") for step in stays(record, rows)]


def of_large(judge: Callable[[Record], Finding | None]) -> Callable[[Record], Finding | None]:
    """The judge, of large models alone."""
    return lambda record: judge(record) if papers_size(record) == "large" else None


def by_context(compared: Callable[..., list[Step]], *arguments: Any) -> Callable[[Record], Finding | None]:
    """A judge of scores by context, of models that were fine-tuned on NarrativeQA alone."""

    def judge(record: Record) -> Finding | None:
        tasks = tuned_on(record)
        if not record["rows"] or "narrative_qa" in tasks:
            return found(compared(record, *arguments))
        on = join_words([f"`{task}`" for task in tasks]) if tasks else "other tasks"
        return Finding(MISSING, why=f"it needs models fine-tuned on NarrativeQA; those tested were on {on}")

    return judge


def most_tasks(at_least: int) -> Callable[[Record], Finding | None]:
    """FIRE above every baseline on so many."""
    return lambda record: best_on(record, "fire", BASELINES, at_least)


LONG_TEXTS = (
    Claim(
        "Table 1",
        "Fine-tuned on SCROLLS, FIRE's average is above every baseline's.",
        ("downstream/scrolls",),
        by(higher, "fire", BASELINES),
        Quote("scrolls", ("fire", *BASELINES), (AVERAGE,)),
    ),
    Claim(
        "Section 4.2",
        f"FIRE's average on SCROLLS is above the best baseline's by over {LEAD} point.",
        ("downstream/scrolls",),
        by(higher, "fire", BASELINES, LEAD),
        Quote("scrolls", ("fire", "t5"), (AVERAGE,)),
    ),
    Claim(
        "Section 4.2",
        f"With large models (350M), too, FIRE's average on SCROLLS is above the best baseline's by over {LEAD} point.",
        ("downstream/scrolls-large",),
        of_large(by(higher, "fire", BASELINES, LEAD)),
        Quote("scrolls", ("fire", "rope_pi"), (AVERAGE,), "large"),
        needs="it needs models of 350M parameters",
    ),
    Claim(
        "Section 4.2",
        "FIRE is above every baseline on 4 of the 7 tasks of SCROLLS.",
        ("downstream/scrolls",),
        most_tasks(4),
        "on Qasper, ContractNLI, NarrativeQA and SummScreenFD",
    ),
    Claim(
        "Section 4.2",
        "With large models (350M) FIRE is above every baseline on 5 of the 7 tasks of SCROLLS.",
        ("downstream/scrolls-large",),
        of_large(most_tasks(5)),
        "on Qasper, ContractNLI, NarrativeQA, SummScreenFD and QuALITY",
        needs="it needs models of 350M parameters",
    ),
    Claim(
        "Section 4.2",
        "RoPE-PI is clearly better than RoPE on SCROLLS.",
        ("downstream/scrolls",),
        by(higher, "rope_pi", ("rope",)),
        Quote("scrolls", ("rope", "rope_pi"), (AVERAGE,)),
    ),
    Claim(
        "Section 4.6",
        f"On SCROLLS FIRE-S's average is at most {CLOSE:g} below FIRE's.",
        ("downstream/scrolls",),
        by(on_a_par, "fire-s", ("fire",), CLOSE),
        Quote("scrolls", ("fire", "fire-s"), (AVERAGE,)),
    ),
    Claim(
        "Section 4.6",
        "FIRE-S's average on SCROLLS is above those of T5's RPE, RoPE-PI and Kerple.",
        ("downstream/scrolls",),
        by(higher, "fire-s", ("t5", "rope_pi", "kerple_log")),
        Quote("scrolls", ("fire-s", "t5", "kerple_log", "rope_pi"), (AVERAGE,)),
    ),
)
BY_CONTEXT = (
    Claim(
        "Table 11",
        "On NarrativeQA FIRE is above every baseline at every context length.",
        ("downstream/narrative-qa",),
        by_context(higher, "fire", BASELINES),
        Quote("narrative_qa", ("fire", "kerple_log"), NARRATIVE),
    ),
    Claim(
        "Section 4.3",
        "FIRE goes on well beyond the fine-tuning length: its score does not fall by half or more.",
        ("downstream/narrative-qa",),
        by_context(steady_fire),
        Quote("narrative_qa", ("fire",), NARRATIVE[3:]),
    ),
    Claim(
        "Section 4.3",
        "RoPE-PI stretched to the fine-tuning length drops steeply beyond it: the score falls by half or more.",
        ("downstream/narrative-qa",),
        by_context(drop_of_stretched),
        (Quote("narrative_qa", ("rope_pi",), NARRATIVE[3:]), "fine-tuned at 8,192"),
    ),
    Claim(
        "Section 4.3",
        "RoPE-PI stretched to four times the fine-tuning length has no steep drop up to there.",
        ("downstream/narrative-qa",),
        by_context(steady_if_stretched),
        (Quote("narrative_qa", ("rope_pi",), NARRATIVE[3:]), "fine-tuned at 8,192"),
    ),
    Claim(
        "Section 4.3",
        "But up to the fine-tuning length it is then worse at all lengths.",
        ("downstream/narrative-qa",),
        by_context(stretched_is_worse),
        (Quote("narrative_qa", ("rope_pi",), NARRATIVE[:4]), "so not at 2,048"),
    ),
)
SHORT_TEXTS = (
    Claim(
        "Figure 3, Table 13",
        f"On GLUE and SuperGLUE FIRE's average is on a par with RoPE's, Kerple's and T5's ({CLOSE:g} below at most).",
        ("downstream/glue",),
        by(on_a_par, "fire", ("rope", "kerple_log", "t5"), CLOSE),
        Quote("glue", ("fire", "rope", "kerple_log", "t5"), (AVERAGE,)),
    ),
    Claim(
        "Figure 3, Table 13",
        "On GLUE and SuperGLUE NoPE and ALiBi are behind FIRE.",
        ("downstream/glue",),
        by(higher, "fire", ("nope", "alibi")),
        Quote("glue", ("fire", "nope", "alibi"), (AVERAGE,)),
    ),
    Claim(
        "Figure 3, Table 13",
        "With large models (350M), too, FIRE's average on GLUE and SuperGLUE is on a par with RoPE's, Kerple's and "
        f"T5's ({CLOSE:g} below at most).",
        ("downstream/glue-large",),
        of_large(by(on_a_par, "fire", ("rope", "kerple_log", "t5"), CLOSE)),
        Quote("glue", ("fire", "rope", "kerple_log", "t5"), (AVERAGE,), "large"),
        needs="it needs models of 350M parameters",
    ),
    Claim(
        "Table 2",
        f"On GLUE and SuperGLUE FIRE-S costs little ({LITTLE:g} at most).",
        ("downstream/glue",),
        by(on_a_par, "fire-s", ("fire",), LITTLE),
        Quote("glue", ("fire", "fire-s"), (AVERAGE,)),
    ),
    Claim(
        "Table 3",
        "On GLUE and SuperGLUE the logarithm raises FIRE's average (both without a threshold).",
        ("downstream/glue-ablation",),
        by(higher, NO_THRESHOLD, (PLAIN,)),
        Quote("glue", (PLAIN, NO_THRESHOLD), (AVERAGE,)),
    ),
    Claim(
        "Table 3",
        "On GLUE and SuperGLUE the threshold raises FIRE's average.",
        ("downstream/glue-ablation",),
        by(higher, "fire", (NO_THRESHOLD,)),
        Quote("glue", (NO_THRESHOLD, "fire"), (AVERAGE,)),
    ),
)
CLAIMS = (*LONG_TEXTS, *BY_CONTEXT, *SHORT_TEXTS)
