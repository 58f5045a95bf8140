"""Tasks as data: the source of their rows, the prompt, the possible answers and the metric.

SCROLLS: Shaham et al. (2022), arXiv:2201.03533. GLUE: Wang et al. (2018), arXiv:1804.07461. SuperGLUE: Wang et al.
(2019), arXiv:1905.00537. GLUE rows become text as in T5 (Raffel et al., 2020, appendix D): the task's name, then
every column with its name.
"""

from dataclasses import dataclass
from typing import Any

from longfire.validation import hint


@dataclass(frozen=True)
class Task:
    """One task. `longfire.tasks.load_examples` reads its rows as `Example`s."""

    name: str
    """As typed on the command line, and the name of its data folder: "qasper"."""
    title: str
    """Column heading in tables: the paper's for SCROLLS, the benchmarks' own names for GLUE."""
    suite: str
    """"scrolls" or "glue"."""
    metric: str
    """A key of `longfire.evaluation.metrics.METRICS`."""
    max_answer: int
    """Maximum number of tokens to generate for an answer."""
    hub: tuple[str, str]
    """Dataset and configuration on the Hugging Face hub."""
    form: str = "template"
    """Layout of a row's input: a key of `longfire.tasks.parse.SPLITTERS`."""
    template: str = ""
    """GLUE and SuperGLUE: the text of a row, with a placeholder per column. SCROLLS rows come as text."""
    document: str = ""
    """The last column of the template, if it may be truncated to fit. Empty: nothing may."""
    choices: tuple[str, ...] = ()
    """Possible answers, in the order of the hub's labels. Empty: free text."""
    hub_validation: str = "validation"
    """The hub's name for the validation split."""

    @property
    def marker(self) -> str:
        """The text before the document in the template: " passage: "."""
        before, _, _ = self.template.partition(f"{{{self.document}}}")
        return before.rpartition("}")[2]


@dataclass(frozen=True)
class Example:
    """One question and its reference answers."""

    id: str
    question: str
    """Comes first and is never truncated. Empty for summaries of a whole document."""
    document: str
    """Follows the question; truncated at the end to fit. May be empty."""
    references: tuple[str, ...]
    """Correct answers, at least one."""
    group: str = ""
    """Shared by examples that are scored together (MultiRC's answers to one question) or share a document."""
    options: tuple[str, ...] = ()
    """Answers to choose from, where they differ by question: QuALITY's four options, ReCoRD's entities."""


def _scrolls(name: str, title: str, metric: str, max_answer: int, form: str = "question", **options: Any) -> Task:
    return Task(name, title, "scrolls", metric, max_answer, **{"hub": ("tau/scrolls", name), "form": form, **options})


def _glue(name: str, title: str, columns: str, choices: tuple[str, ...], **options: Any) -> Task:
    """`columns` follow the task's name, separated by `|`; a bare word stands for `word: {word}`."""
    parts = [part if "{" in part else f"{part}: {{{part}}}" for part in columns.split("|")]
    defaults = {"metric": "accuracy", "max_answer": 16, "hub": ("nyu-mll/glue", name)}
    template = " ".join([name, *parts])
    return Task(name, title, "glue", template=template, choices=choices, **{**defaults, **options})


def _superglue(name: str, title: str, columns: str, choices: tuple[str, ...], config: str = "", **options: Any) -> Task:
    return _glue(name, title, columns, choices, hub=("aps/super_glue", config or name), **options)


TRUTH = ("False", "True")
ENTAILMENT = ("entailment", "not_entailment")

# Both suites in the order of the paper's tables.
SCROLLS = (
    _scrolls("qasper", "QAS", "f1", 128),
    _scrolls("contract_nli", "CNLI", "exact_match", 16, choices=("Entailment", "Contradiction", "Not mentioned")),
    _scrolls("qmsum", "QMS", "rouge_gm", 512),
    _scrolls("narrative_qa", "NQA", "f1", 64),
    _scrolls("summ_screen_fd", "SumS", "rouge_gm", 512, form="document"),
    _scrolls("gov_report", "GovR", "rouge_gm", 1024, form="document"),
    _scrolls("quality", "QuAL", "exact_match", 64, form="options"),
)
# Wang et al. (2022): question-focused summaries with four references each; not part of the SCROLLS average.
SQUALITY = _scrolls("squality", "SQuAL", "rouge_gm", 768, hub=("pszemraj/SQuALITY-v1.3", ""))
GLUE = (
    _superglue("boolq", "BoolQ", "question|passage", TRUTH, document="passage"),
    _superglue("cb", "CB", "hypothesis|premise", ("entailment", "contradiction", "neutral")),
    _glue("cola", "CoLA", "sentence", ("unacceptable", "acceptable")),
    _superglue("copa", "COPA", "choice1|choice2|premise|question", ("choice1", "choice2")),
    _glue(
        "mnli",
        "MNLI",
        "premise|hypothesis",
        ("entailment", "neutral", "contradiction"),
        hub_validation="validation_matched",
    ),
    _glue("mrpc", "MRPC", "sentence1|sentence2", ("not_equivalent", "equivalent")),
    _glue("qnli", "QNLI", "question|sentence", ENTAILMENT),
    _glue("qqp", "QQP", "question1|question2", ("not_duplicate", "duplicate")),
    _glue("rte", "RTE", "sentence1|sentence2", ENTAILMENT),
    _glue("sst2", "SST-2", "sentence", ("negative", "positive")),
    _superglue("wic", "WiC", "sentence1|sentence2|word", TRUTH),
    _glue("wnli", "WNLI", "sentence1|sentence2", ENTAILMENT[::-1]),
    _superglue(
        "multirc", "MultiRC", "question|answer|paragraph", TRUTH, metric="group_exact_match", document="paragraph"
    ),
    _superglue(
        "record", "ReCoRD", "query|entities|passage", (), metric="exact_match", max_answer=32, document="passage"
    ),
    _superglue("wsc", "WSC", "text: {marked}|candidate: {span1_text}|pronoun: {span2_text}", TRUTH, config="wsc.fixed"),
)

TASKS: dict[str, Task] = {task.name: task for task in (*SCROLLS, SQUALITY, *GLUE)}
SUITES: dict[str, tuple[str, ...]] = {
    "scrolls": tuple(task.name for task in SCROLLS),
    "glue": tuple(task.name for task in GLUE),
}


def task_named(name: str) -> Task:
    """The task with this name."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}. {hint(name, TASKS)}")
    return TASKS[name]
