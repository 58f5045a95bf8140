"""What to train: a recipe states a whole run, and a variant only its difference from another.

`base` and `large` are the paper's tables, with GPT-3's schedule (Brown et al. 2020), which it refers to: warm-up over
375 million tokens, cosine to a tenth at 260 billion, constant from there.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import wraps
from numbers import Real
from typing import Any, Self, TypeVar

from huggingface_hub.errors import StrictDataclassError

from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.encodings.fire import RANDOM, STARTS
from longfire.encodings.labels import parse_label
from longfire.encodings.registry import SHARED, has_starts, option_names
from longfire.model import SIZES, LongfireConfig
from longfire.model.extension import EXTENSIONS
from longfire.validation import at_least, hint, one_of, positive

PRECISIONS = ("auto", "bfloat16", "float32")
TRAINING_LENGTH = "length"
"""A recipe's horizon at the training length, whatever that is."""
INIT = "init"
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
"""Fields by their former names. Old run folders and records have them; callers may use them for one release."""


def translate_fields(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe or an identity as written by any release, under today's names and with the horizon in tokens."""
    current = {RENAMED.get(name, name): value for name, value in recorded.items()}
    multiple = current.get("horizon")
    if current.keys() != recorded.keys() and isinstance(multiple, Real):
        current["horizon"] = TRAINING_LENGTH if multiple == 1 else round(multiple * current["length"])
    return current


def rename_arguments(given: Mapping[str, Any], stacklevel: int = 3) -> dict[str, Any]:
    """Arguments of a caller under today's names, with a warning if there are old ones."""
    old_names = [name for name in given if name in RENAMED]
    for old in old_names:
        if RENAMED[old] in given:
            raise ValueError(f"{old} is an old name for {RENAMED[old]}: give {RENAMED[old]} alone.")
    if old_names:
        now = ", ".join(f"{old} is now {RENAMED[old]}" for old in old_names)
        message = f"recipe fields were renamed: {now}. The next release drops the old names."
        warnings.warn(message, FutureWarning, stacklevel=stacklevel)
    return {RENAMED.get(name, name): value for name, value in given.items()}


C = TypeVar("C", bound=type[Any])


def accept_old_names(cls: C) -> C:
    """Class decorator: the constructor takes fields by their old names too."""
    init = cls.__init__

    @wraps(init)
    def construct(self: Any, *arguments: Any, **given: Any) -> None:
        init(self, *arguments, **rename_arguments(given))

    cls.__init__ = construct
    return cls


@dataclass(frozen=True)
class AnyRecipe:
    """What all runs state. All numbers are of the whole run, whatever devices it is spread over."""

    name: str
    length: int
    """Tokens in a training sequence, at most."""
    batch_size: int
    """Sequences in a step."""
    steps: int
    learning_rate: float
    warmup_steps: int = 100
    """Steps until the learning rate is reached, linearly."""
    decay_steps: int | None = None
    """Steps after which it has fallen to `min_lr_ratio`, by a cosine. None: all."""
    min_lr_ratio: float = 0.1
    """The share of the learning rate that is left. 1: it stays as it is."""
    position_lr_factor: float = 10.0
    """What the learning rate of the encoding's own parameters is multiplied by: they are few, and starve otherwise."""
    weight_decay: float = 0.1
    """Of matrices; not of biases, norms and encodings."""
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    """The largest norm of a gradient."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    seed: int = 0
    precision: str = "auto"
    """"auto" is bfloat16 on a GPU and float32 on a CPU. Weights are always kept in float32."""
    compile: bool | None = None
    """Each layer by torch.compile. None: on a GPU."""
    max_tokens_per_device: int | None = None
    """The most tokens of a forward pass on one device; the rest of a step is accumulated. None: as the device can."""
    checkpoint_every: int = 1000
    log_every: int = 10

    def __post_init__(self) -> None:
        one_of("the precision", self.precision, PRECISIONS)
        for name in ("length", "batch_size", "steps", "checkpoint_every", "log_every"):
            at_least(name, getattr(self, name), 1)
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
                raise ValueError(f"{name} must be below 1, or nothing is left; it is {getattr(self, name)!r}.")

    @property
    def tokens(self) -> int:
        """That training sees, at most."""
        return self.steps * self.batch_size * self.length

    def rate(self, step: int) -> float:
        """The share of the learning rate at a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        decay = self.steps if self.decay_steps is None else self.decay_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, decay - self.warmup_steps))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        changes = rename_arguments(changes)
        known = [one.name for one in fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"a recipe has no {name!r}. {hint(name, known)}")
        return replace(self, **changes)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: all but how it is carried out."""
        how = ("name", "compile", "cuda_graphs", "max_tokens_per_device", "checkpoint_every", "log_every")
        return {key: value for key, value in asdict(self).items() if key not in how}


@accept_old_names
@dataclass(frozen=True)
class Recipe(AnyRecipe):
    """Pretraining."""

    size: str = field(kw_only=True)
    """Of the model: a name in `longfire.model.SIZES`."""
    encoding: str = "fire"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    share_position_encoding: bool = False
    """One encoding for all layers: FIRE-S."""
    init: str | None = None
    """FIRE's initialisation, for encodings that have a choice: "kerple_log" or "alibi". None: random."""
    horizon: int | str | None = None
    """The position at which FIRE's normaliser stops growing: tokens, or "length" for the training length. None, as in
    the paper: it never stops."""
    cuda_graphs: bool | None = None
    """Compiled layers as CUDA graphs: a small model's kernels are done sooner than started. None: on a single GPU,
    where a step is a single pass."""
    init_from: str | None = None
    """A checkpoint's folder to go on from, instead of random weights (`init` then does nothing). Its size, encoding
    and tokenizer must be the recipe's."""
    extend_to: int | None = None
    """The target length of "rope_pi" or "yarn", where the checkpoint has "rope"."""
    tokenizer: str = "bpe"
    """"bytes", "bpe" (trained on the corpus), or a Hugging Face tokenizer's folder or name."""
    vocab_size: int = 8192
    """Of a BPE."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("the size", self.size, SIZES)
        if self.encoding not in ENCODINGS:
            raise ValueError(f"there is no encoding named {self.encoding!r}. {hint(self.encoding, ENCODINGS)}")
        own = self.encoding_options
        if INIT in own and has_starts(ENCODINGS[self.encoding]):
            given = [self.init] if self.init is not None else []
            object.__setattr__(self, INIT, agreed_init(*given, own[INIT]))
            object.__setattr__(self, "encoding_options", {name: own[name] for name in own if name != INIT})
        elif self.init == RANDOM:
            object.__setattr__(self, INIT, None)
        one_of(INIT, self.init, (None, *STARTS))
        self._check_horizon_unit()
        if self.extend_to is not None:
            at_least("extend_to", self.extend_to, 1)
            one_of("the encoding to extend to", self.encoding, EXTENSIONS)
            if self.init_from is None:
                raise ValueError(
                    f"extend_to={self.extend_to} extends a checkpoint with 'rope': say which (--from FOLDER)."
                )

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed. The encoding's option `init` sets the field."""
        changes = rename_arguments(changes)
        options = dict(changes.get("encoding_options") or {})
        if has_starts(ENCODINGS.get(changes.get("encoding", self.encoding), PositionEncoding)) and INIT in options:
            given = [changes[INIT]] if INIT in changes else []
            changes[INIT] = agreed_init(*given, options.pop(INIT))
            changes["encoding_options"] = options
        return super().but(**changes)

    def with_encoding(self, label: str, **changes: Any) -> Self:
        """A copy with the encoding and the options of a label, and other changes, which take precedence."""
        name, shared, options = parse_label(label)
        own: dict[str, Any] = {"encoding": name}
        if shared:
            own["share_position_encoding"] = True
        if options:
            own["encoding_options"] = {**self.encoding_options, **options}
        return self.but(**{**own, **changes})

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: a horizon as the option that it is, and an init where the encoding has one."""
        same = super().identity()
        same.pop("horizon")
        horizon = self.position_encoding().get("horizon")
        others = {name: value for name, value in self.encoding_options.items() if name != "horizon"}
        same["encoding_options"] = others if horizon is None else {**others, "horizon": horizon}
        if not has_starts(ENCODINGS[self.encoding]):
            same.pop(INIT)
        elif self.init is not None and others.get("init_c") is not None:
            same["init_c_honoured"] = True  # runs from before started with c = 1 whatever init_c was
        return same

    def position_encoding(self) -> dict[str, Any]:
        """The encoding as a configuration has it.

        FIRE's L begins at a quarter of the training length. Sinusoids are as large as the embeddings begin.
        """
        options = dict(self.encoding_options)
        known = option_names(ENCODINGS[self.encoding])
        if "init_L" in known:
            options.setdefault("init_L", self.length / 4)
        if "scale" in known:
            options.setdefault("scale", LongfireConfig.initializer_range)
        if "horizon" in known and self.horizon is not None:
            options.setdefault("horizon", self.length if self.horizon == TRAINING_LENGTH else self.horizon)
        if has_starts(ENCODINGS[self.encoding]) and self.init is not None:
            options[INIT] = self.init
        return {"name": self.encoding, **options}

    def config(self, vocab_size: int, **special_tokens: Any) -> LongfireConfig:
        """Of a new model. The vocabulary is rounded up to a multiple of 128, which a GPU multiplies faster."""
        if self.encoding in EXTENSIONS and not {"trained_length", "target_length"} <= self.encoding_options.keys():
            raise ValueError(
                f"{self.encoding!r} extends a checkpoint with 'rope': say which, and how far (--from RUN --extend-to "
                f"N); or, to train with it from scratch, give its options trained_length and target_length."
            )
        encoding = self.position_encoding()
        self._check_horizon(encoding)
        try:
            return LongfireConfig.of_size(
                self.size,
                vocab_size=math.ceil(vocab_size / 128) * 128,
                max_position_embeddings=self.length,
                position_encoding=encoding,
                share_position_encoding=self.share_position_encoding,
                attention_dropout=self.attention_dropout,
                resid_dropout=self.dropout,
                **special_tokens,
            )
        except StrictDataclassError as error:  # what was wrong is within
            raise ValueError(self._with_remedy(str(error.__cause__ or error))) from error

    def check(self) -> None:
        """Refuse options that no new model can have, before any text is read."""
        if self.init_from is None:
            self.config(1)

    def _check_horizon_unit(self) -> None:
        """Refuse a multiple of the training length, which a horizon was in earlier releases."""
        horizon: Any = self.horizon
        if isinstance(horizon, float):
            positive("horizon", horizon)
            tokens = max(1, round(horizon * self.length))
            now = TRAINING_LENGTH if horizon == 1 else tokens
            raise ValueError(
                f"a horizon is in tokens, or {TRAINING_LENGTH!r} for the training length, not {horizon!r}. For "
                f"{horizon:g} times the training length write horizon={now}."
            )
        if horizon is not None and horizon != TRAINING_LENGTH:
            at_least("horizon (tokens, or 'length')", horizon, 1)

    def _check_horizon(self, encoding: dict[str, Any]) -> None:
        """Refuse a horizon that would make L, which is to be learned, of no effect."""
        L, horizon = encoding.get("init_L"), encoding.get("horizon")
        if not (isinstance(L, Real) and isinstance(horizon, Real)) or encoding.get("threshold", "learned") is None:
            return
        if 1 <= float(horizon) < float(L):
            without = self._label(init_L=L, horizon=None)
            multiple = f" For {horizon} times the training length write horizon={round(float(horizon) * self.length)}."
            raise ValueError(
                f"init_L is {L:g}, above the horizon of {horizon} tokens: FIRE's normaliser would be the same for "
                f"every query, and L would neither matter nor learn. Take an init_L of at most {horizon}, or no "
                f"horizon: {without}. A normaliser that is constant on purpose is threshold=fixed,init_L={horizon},"
                f"horizon={horizon}.{multiple if self.horizon == horizon else ''}"
            )

    def _with_remedy(self, message: str) -> str:
        """What the encoding said and, if that is about init, where it is from and how to do without."""
        if self.init is None or not message.startswith(f"{INIT}="):
            return message
        whose = "recipe's" if RECIPES.get(self.name, self).init == self.init else "requested"
        return (
            f"{message} The {whose} init is {self.init}; for a random one add init=random to the encoding's options: "
            f"{self._label(init=RANDOM)}."
        )

    def _label(self, **changes: Any) -> str:
        """The encoding as it is typed, with other options."""
        options = ",".join(f"{name}={value}" for name, value in {**self.encoding_options, **changes}.items())
        return f"{self.encoding}{SHARED * self.share_position_encoding}:{options}"


def agreed_init(*given: str | None) -> str | None:
    """The initialisation that a field and an encoding's option state. "random" is None."""
    first, *others = (None if value == RANDOM else value for value in given)
    if any(other != first for other in others):
        raise ValueError(f"init={given[0]} and the encoding's init={given[1]} contradict each other. Give one of them.")
    return first


TINY = Recipe(
    "tiny",
    size="demo",
    length=64,
    batch_size=32,
    steps=200,
    learning_rate=4e-3,
    warmup_steps=20,
    position_lr_factor=3.0,
    init="kerple_log",
    horizon=TRAINING_LENGTH,
    tokenizer="bytes",
    checkpoint_every=100,
)
SMALL = Recipe(
    "small",
    size="small",
    length=512,
    batch_size=128,
    steps=1600,
    learning_rate=1e-3,
    init="kerple_log",
    horizon=TRAINING_LENGTH,
    checkpoint_every=200,
)
BASE = Recipe(
    "base",
    size="base",
    length=2048,
    batch_size=256,
    steps=600_000,
    learning_rate=6e-4,
    warmup_steps=715,  # 375 million tokens
    decay_steps=495_911,  # 260 billion
    position_lr_factor=1.0,
    tokenizer="gpt2",
)
LARGE = BASE.but(name="large", size="large", learning_rate=3e-4)
BASE_512 = BASE.but(name="base-512", length=512, warmup_steps=2861, decay_steps=1_983_643)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (TINY, SMALL, BASE, LARGE, BASE_512)}
"""By name."""


def recipe_named(name: str) -> Recipe:
    """A recipe, or an error that says which there are."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe named {name!r}. {hint(name, RECIPES)}")
    return RECIPES[name]
