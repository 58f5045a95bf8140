"""SCROLLS: Standardized CompaRison Over Long Language Sequences (Shaham et al., 2022), arXiv:2201.03533.

The seven of the paper's table, and SQuALITY (Wang et al., 2022) as an eighth. A row's `input` is the question, a blank
line and the document; summaries of a whole document have no question.
"""

from longfire.tasks.task import Task


def _scrolls(
    name: str,
    title: str,
    metric: str,
    max_answer: int,
    form: str = "question",
    choices: tuple[str, ...] = (),
    hub: tuple[str, str] | None = None,
) -> Task:
    return Task(name, title, "scrolls", metric, max_answer, hub or ("tau/scrolls", name), form=form, choices=choices)


SCROLLS = (
    _scrolls("qasper", "QAS", "f1", 128),
    _scrolls("contract_nli", "CNLI", "exact_match", 16, choices=("Entailment", "Contradiction", "Not mentioned")),
    _scrolls("qmsum", "QMS", "rouge_gm", 512),
    _scrolls("narrative_qa", "NQA", "f1", 64),
    _scrolls("summ_screen_fd", "SumS", "rouge_gm", 512, form="document"),
    _scrolls("gov_report", "GovR", "rouge_gm", 1024, form="document"),
    _scrolls("quality", "QuAL", "exact_match", 64, form="options"),
)
"""In the order of the paper's table."""

SQUALITY = _scrolls("squality", "SQuAL", "rouge_gm", 768, hub=("pszemraj/SQuALITY-v1.3", ""))
"""Summaries that answer a question, four references each; no part of the average."""
