"""What a task is, and one question of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One task as data. Its rows become `Example`s by `longfire.tasks.load_examples`."""

    name: str
    """As typed, and as its folder is called: "qasper"."""
    title: str
    """As the paper's tables have it."""
    suite: str
    """"scrolls" or "glue"."""
    metric: str
    """A name in `longfire.evaluation.metrics.METRICS`."""
    max_answer: int
    """Tokens of an answer, at most, when it is generated."""
    hub: tuple[str, str]
    """Dataset and configuration on the Hugging Face hub. Untried: no hub was within reach."""
    form: str = "template"
    """What a row's input is made of: a key of `longfire.tasks.rows.FORMS`."""
    template: str = ""
    """GLUE and SuperGLUE: the text of a row, made of its columns, in the manner of T5. SCROLLS has its text ready."""
    document: str = ""
    """The column at the template's end that may be cut where there is too little room. Empty: none may."""
    choices: tuple[str, ...] = ()
    """The answers there are, in the order of the hub's labels. Empty: any text."""
    hub_validation: str = "validation"
    """What the hub calls the validation split."""

    @property
    def marker(self) -> str:
        """What the template has before the document: " passage: "."""
        before, _, _ = self.template.partition(f"{{{self.document}}}")
        return before.rpartition("}")[2]


@dataclass(frozen=True)
class Example:
    """One question, with all its right answers."""

    id: str
    question: str
    """Comes first, and is never cut."""
    document: str
    """Comes after it, and is cut from its end where there is too little room. May be empty."""
    references: tuple[str, ...]
    """Right answers, at least one."""
    group: str = ""
    """Of examples that count together (MultiRC's answers to one question), or the same document's. May be empty."""
    options: tuple[str, ...] = ()
    """Which the answer is one of, where each question has its own: QuALITY's four, ReCoRD's entities."""
