"""GLUE (Wang et al., 2018), arXiv:1804.07461, and SuperGLUE (Wang et al., 2019), arXiv:1905.00537, text to text.

The text of a row is made as T5 does (Raffel et al., 2020, appendix D): the task's name, then columns with their names.
"""

from longfire.tasks.task import Task


def _glue(
    name: str,
    columns: str,
    choices: tuple[str, ...],
    hub: str = "nyu-mll/glue",
    config: str = "",
    metric: str = "accuracy",
    max_answer: int = 16,
    document: str = "",
    hub_validation: str = "validation",
) -> Task:
    """`columns`: what follows the task's name in the text; a bare word stands for `word: {word}`."""
    parts = [part if "{" in part else f"{part}: {{{part}}}" for part in columns.split("|")]
    return Task(
        *(name, name.capitalize(), "glue", metric, max_answer, (hub, config or name)),
        template=" ".join([name, *parts]),
        document=document,
        choices=choices,
        hub_validation=hub_validation,
    )


TRUTH = ("False", "True")
ENTAILED = ("entailment", "not_entailment")
SUPER = "aps/super_glue"

GLUE = (
    _glue("boolq", "question|passage", TRUTH, SUPER, document="passage"),
    _glue("cb", "hypothesis|premise", ("entailment", "contradiction", "neutral"), SUPER),
    _glue("cola", "sentence", ("unacceptable", "acceptable")),
    _glue("copa", "choice1|choice2|premise|question", ("choice1", "choice2"), SUPER),
    _glue(
        *("mnli", "premise|hypothesis", ("entailment", "neutral", "contradiction")),
        hub_validation="validation_matched",
    ),
    _glue("mrpc", "sentence1|sentence2", ("not_equivalent", "equivalent")),
    _glue("qnli", "question|sentence", ENTAILED),
    _glue("qqp", "question1|question2", ("not_duplicate", "duplicate")),
    _glue("rte", "sentence1|sentence2", ENTAILED),
    _glue("sst2", "sentence", ("negative", "positive")),
    _glue("wic", "sentence1|sentence2|word", TRUTH, SUPER),
    _glue("wnli", "sentence1|sentence2", ENTAILED[::-1]),
    _glue("multirc", "question|answer|paragraph", TRUTH, SUPER, metric="group_exact_match", document="paragraph"),
    _glue(
        *("record", "query|entities|passage", (), SUPER),
        metric="exact_match",
        max_answer=32,
        document="passage",
    ),
    _glue(
        *("wsc", "text: {marked}|candidate: {span1_text}|pronoun: {span2_text}", TRUTH, SUPER),
        config="wsc.fixed",
    ),
)
"""In the order of the paper's table. Of SuperGLUE: BoolQ, CB, COPA, WiC, MultiRC, ReCoRD and WSC."""
