"""Base of pretraining and fine-tuning recipes: shared fields, the schedule, and former field names."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, Self, TypeVar

from longfire.validation import at_least, hint, of_type, one_of, positive, renamed

PRECISIONS = ("auto", "bfloat16", "float32")
TRAINING_LENGTH = "length"
"""Horizon value that means the training length."""
MAX_SEED = 2**32 - 1
"""NumPy's limit."""

RENAMED = {
    "warmup": "warmup_steps",
    "decay": "decay_steps",
    "final": "min_lr_ratio",
    "position_rate": "position_lr_factor",
    "clip": "max_grad_norm",
    "start": "init",
    "share": "share_position_encoding",
    "batch": "batch_size",
    "graphs": "cuda_graphs",
    "device_tokens": "max_tokens_per_device",
}
"""Former names of fields: in old run folders and records, and accepted from callers for one release."""

C = TypeVar("C", bound=type[Any])


def translate_fields(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe or identity from any release, with current field names and the horizon in tokens."""
    current = {RENAMED.get(name, name): value for name, value in recorded.items()}
    multiple = current.get("horizon")
    if current.keys() != recorded.keys() and isinstance(multiple, Real):
        current["horizon"] = TRAINING_LENGTH if multiple == 1 else round(multiple * current["length"])
    return current


def accept_old_names(cls: C) -> C:
    """Class decorator: the constructor also accepts former field names."""
    cls.__init__ = renamed(**RENAMED)(cls.__init__)
    return cls


@dataclass(frozen=True)
class BaseRecipe:
    """Fields common to pretraining and fine-tuning. All numbers are for the whole run, over all devices."""

    name: str
    length: int
    """The training length: maximum tokens in a sequence, or what a synthetic task counts (its `unit`)."""
    batch_size: int
    """Sequences per step."""
    steps: int
    learning_rate: float
    warmup_steps: int = 100
    """Linear warm-up."""
    decay_steps: int | None = None
    """The step at which cosine decay reaches `min_lr_ratio`. None: the last."""
    min_lr_ratio: float = 0.1
    """The learning rate after decay, as a fraction of the peak. 1: constant."""
    position_lr_factor: float = 10.0
    """Multiplies the learning rate of the encoding's parameters: they are few, and learn too slowly otherwise."""
    weight_decay: float = 0.1
    """For matrices; biases, norms and encodings have none."""
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    seed: int = 0
    precision: str = "auto"
    """"auto": bfloat16 on a GPU, float32 on a CPU. Weights are always float32."""
    compile: bool | None = None
    """Compile each layer with torch.compile. None: on a GPU."""
    max_tokens_per_device: int | None = None
    """Tokens per forward pass and device; gradients accumulate over the rest of a step. None: a default per device."""
    checkpoint_every: int = 1000
    log_every: int = 10
    min_steps: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            of_type(field.name, getattr(self, field.name), field.type)
        one_of("the precision", self.precision, PRECISIONS)
        for name in ("length", "batch_size", "checkpoint_every", "log_every"):
            at_least(name, getattr(self, name), 1)
        at_least("steps", self.steps, self.min_steps)
        for name in ("warmup_steps", "seed"):
            at_least(name, getattr(self, name), 0)
        if self.seed > MAX_SEED:
            raise ValueError(f"seed must be at most {MAX_SEED} (32 bits), not {self.seed}.")
        for name in ("learning_rate", "position_lr_factor", "max_grad_norm"):
            positive(name, getattr(self, name))
        for name in ("weight_decay", "min_lr_ratio", "dropout", "attention_dropout"):
            positive(name, getattr(self, name), zero_too=True)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be below 1, not {getattr(self, name)!r}.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be at least 0 and below 1, not {self.betas!r}.")
        if self.sequence_length < 2:
            raise ValueError(f"length must be at least 2, not {self.length}: the first token predicts the second.")

    @property
    def tokens(self) -> int:
        """Maximum tokens seen in training."""
        return self.steps * self.batch_size * self.sequence_length

    @property
    def sequence_length(self) -> int:
        """Maximum tokens in a training sequence."""
        return self.length

    def lr_ratio(self, step: int) -> float:
        """The learning rate at a step, counted from 0, as a fraction of the peak."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        end = self.steps if self.decay_steps is None else self.decay_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, end - self.warmup_steps))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2

    @renamed(**RENAMED)
    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"a recipe has no field {name!r}. {hint(name, known)}")
        return replace(self, **changes)

    def identity(self) -> dict[str, Any]:
        """What identifies a run: every field except how it is executed."""
        execution = ("name", "compile", "cuda_graphs", "max_tokens_per_device", "gradient_checkpointing")
        saving = ("checkpoint_every", "log_every")
        return {key: value for key, value in asdict(self).items() if key not in (*execution, *saving)}
