"""What to train: a recipe states a whole run, and a variant only its difference from another.

`base` and `large` are the paper's tables, with GPT-3's schedule (Brown et al. 2020), which it refers to: warm-up over
375 million tokens, cosine to a tenth at 260 billion, constant from there.
"""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any, Self

from huggingface_hub.errors import StrictDataclassError

from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.encodings.fire import RANDOM, STARTS
from longfire.encodings.registry import SHARED, has_starts, option_names
from longfire.model import SIZES, LongfireConfig
from longfire.model.extension import EXTENSIONS
from longfire.validation import at_least, hint, one_of, positive

PRECISIONS = ("auto", "bfloat16", "float32")
FARTHEST = 64
"""Training lengths that a horizon may be: above, somebody means tokens."""
INIT = "init"
"""FIRE's own name for a recipe's `start`."""
LAST_SEED = 2**32 - 1
"""NumPy's."""


@dataclass(frozen=True)
class AnyRecipe:
    """What all runs state. All numbers are of the whole run, whatever devices it is spread over."""

    name: str
    length: int
    """Tokens in a training sequence, at most."""
    batch: int
    """Sequences in a step."""
    steps: int
    learning_rate: float
    warmup: int = 100
    """Steps until the learning rate is reached, linearly."""
    decay: int | None = None
    """Steps after which it has fallen to `final`, by a cosine. None: all."""
    final: float = 0.1
    """The share of the learning rate that is left. 1: it stays as it is."""
    position_rate: float = 10.0
    """What the learning rate of the encoding's own parameters is multiplied by: they are few, and starve otherwise."""
    weight_decay: float = 0.1
    """Of matrices; not of biases, norms and encodings."""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    """The largest norm of a gradient."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    seed: int = 0
    precision: str = "auto"
    """"auto" is bfloat16 on a GPU and float32 on a CPU. Weights are always kept in float32."""
    compile: bool | None = None
    """Each layer by torch.compile. None: on a GPU."""
    device_tokens: int | None = None
    """The most tokens of a forward pass on one device; the rest of a step is accumulated. None: as the device can."""
    checkpoint_every: int = 1000
    log_every: int = 10

    def __post_init__(self) -> None:
        one_of("the precision", self.precision, PRECISIONS)
        for name in ("length", "batch", "steps", "checkpoint_every", "log_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("warmup", "seed"):
            at_least(name, getattr(self, name), 0)
        if self.seed > LAST_SEED:
            raise ValueError(f"seed must be at most {LAST_SEED} (32 bits), not {self.seed}.")
        for name in ("learning_rate", "position_rate", "clip"):
            positive(name, getattr(self, name))
        for name in ("weight_decay", "final", "dropout", "attention_dropout"):
            positive(name, getattr(self, name), zero_too=True)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be below 1, or nothing is left; it is {getattr(self, name)!r}.")

    @property
    def tokens(self) -> int:
        """That training sees, at most."""
        return self.steps * self.batch * self.length

    def rate(self, step: int) -> float:
        """The share of the learning rate at a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        decay = self.steps if self.decay is None else self.decay
        done = min(1.0, (step - self.warmup) / max(1, decay - self.warmup))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2

    def but(self, **changes: Any) -> Self:
        """The same, but for these."""
        known = [one.name for one in fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"a recipe has no {name!r}. {hint(name, known)}")
        return replace(self, **changes)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: all but how it is carried out."""
        how = ("name", "compile", "graphs", "device_tokens", "checkpoint_every", "log_every")
        return {key: value for key, value in asdict(self).items() if key not in how}


@dataclass(frozen=True)
class Recipe(AnyRecipe):
    """Pretraining."""

    size: str = field(kw_only=True)
    """Of the model: a name in `longfire.model.SIZES`."""
    encoding: str = "fire"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    share: bool = False
    """One encoding for all layers: FIRE-S."""
    start: str | None = None
    """FIRE's `init`, for encodings that have one: "kerple_log" or "alibi". None: random. Either name can be given, here
    and as an encoding's option; recipes, records and folders of runs keep this one."""
    horizon: float | None = None
    """Where FIRE's normaliser stops growing, as a multiple of the training length. None, the paper: nowhere."""
    graphs: bool | None = None
    """Compiled layers as CUDA graphs: a small model's kernels are done sooner than started. None: on a single GPU,
    where a step is a single pass."""
    init_from: str | None = None
    """A checkpoint's folder to go on from, instead of random weights (`start` then does nothing). Its size, encoding
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
            given = {"start": self.start} if self.start is not None else {}
            object.__setattr__(self, "start", one_start(given | {INIT: own[INIT]}))
            object.__setattr__(self, "encoding_options", {name: own[name] for name in own if name != INIT})
        one_of("start (FIRE's init)", self.start, (None, *STARTS))
        if self.horizon is not None:
            positive("horizon", self.horizon)
            if self.horizon > FARTHEST:
                tokens = round(self.horizon)
                raise ValueError(
                    f"horizon is a multiple of the training length, not tokens, and at most {FARTHEST}, not "
                    f"{self.horizon!r}; for {tokens} tokens say fire:horizon={tokens}."
                )
        if self.extend_to is not None:
            at_least("extend_to", self.extend_to, 1)
            one_of("the encoding to extend to", self.encoding, EXTENSIONS)
            if self.init_from is None:
                raise ValueError(
                    f"extend_to={self.extend_to} extends a checkpoint with 'rope': say which (--from FOLDER)."
                )

    def but(self, **changes: Any) -> Self:
        """The same, but for these. `init` is another name for `start`."""
        options = dict(changes.get("encoding_options") or {})
        given = {name: changes[name] for name in ("start", INIT) if name in changes}
        if has_starts(ENCODINGS.get(changes.get("encoding", self.encoding), PositionEncoding)) and INIT in options:
            given[f"the encoding's {INIT}"] = options.pop(INIT)
            changes["encoding_options"] = options
        if given:
            changes.pop(INIT, None)
            changes["start"] = one_start(given)
        return super().but(**changes)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: a horizon as the option that it is, and a start where the encoding has one."""
        same = super().identity()
        same.pop("horizon")
        horizon = self.position_encoding().get("horizon")
        others = {name: value for name, value in self.encoding_options.items() if name != "horizon"}
        same["encoding_options"] = others if horizon is None else {**others, "horizon": horizon}
        if not has_starts(ENCODINGS[self.encoding]):
            same.pop("start")
        elif self.start is not None and others.get("init_c") is not None:
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
            options.setdefault("horizon", max(1, round(self.horizon * self.length)))
        if has_starts(ENCODINGS[self.encoding]) and self.start is not None:
            options[INIT] = self.start
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
                share_position_encoding=self.share,
                attention_dropout=self.attention_dropout,
                resid_dropout=self.dropout,
                **special_tokens,
            )
        except StrictDataclassError as error:  # what was wrong is within
            raise ValueError(self._with_remedy(str(error.__cause__ or error))) from error

    def check(self) -> None:
        """Refuse options and a start that no new model can have, before any text is read."""
        if self.init_from is None:
            self.config(1)

    def _check_horizon(self, encoding: dict[str, Any]) -> None:
        """Refuse a horizon that would make L, which is to be learned, of no effect."""
        L, horizon = encoding.get("init_L"), encoding.get("horizon")
        if not (isinstance(L, Real) and isinstance(horizon, Real)) or encoding.get("threshold", "learned") is None:
            return
        if 1 <= float(horizon) < float(L):
            without = self._label(init_L=L, horizon=None)
            raise ValueError(
                f"init_L is {L:g}, above the horizon of {horizon} tokens: FIRE's normaliser would be the same for "
                f"every query, and L would neither matter nor learn. Take an init_L of at most {horizon}, or no "
                f"horizon: {without}. A normaliser that is constant on purpose is threshold=fixed,init_L={horizon},"
                f"horizon={horizon}."
            )

    def _with_remedy(self, message: str) -> str:
        """What the encoding said and, if that is about the start, where it is from and how to do without."""
        if self.start is None or not message.startswith(f"{INIT}="):
            return message
        whose = "recipe's start" if RECIPES.get(self.name, self).start == self.start else "start asked for"
        return (
            f"{message} The {whose} is {self.start}; for a random one add init=random to the encoding's options: "
            f"{self._label(init=RANDOM)}."
        )

    def _label(self, **changes: Any) -> str:
        """The encoding as it is typed, with other options."""
        options = ",".join(f"{name}={value}" for name, value in {**self.encoding_options, **changes}.items())
        return f"{self.encoding}{SHARED * self.share}:{options}"


def one_start(given: dict[str, Any]) -> str | None:
    """What several names for the start say, where they say the same. "random" is None."""
    first, *others = (None if value == RANDOM else value for value in given.values())
    if any(other != first for other in others):
        said = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(f"{said} contradict each other: start and init are two names for one thing. Give one of them.")
    return first


TINY = Recipe(
    "tiny",
    size="demo",
    length=64,
    batch=32,
    steps=200,
    learning_rate=4e-3,
    warmup=20,
    position_rate=3.0,
    start="kerple_log",
    horizon=1.0,
    tokenizer="bytes",
    checkpoint_every=100,
)
SMALL = Recipe(
    "small",
    size="small",
    length=512,
    batch=128,
    steps=1600,
    learning_rate=1e-3,
    start="kerple_log",
    horizon=1.0,
    checkpoint_every=200,
)
BASE = Recipe(
    "base",
    size="base",
    length=2048,
    batch=256,
    steps=600_000,
    learning_rate=6e-4,
    warmup=715,  # 375 million tokens
    decay=495_911,  # 260 billion
    position_rate=1.0,
    tokenizer="gpt2",
)
LARGE = BASE.but(name="large", size="large", learning_rate=3e-4)
BASE_512 = BASE.but(name="base-512", length=512, warmup=2861, decay=1_983_643)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (TINY, SMALL, BASE, LARGE, BASE_512)}
"""By name."""


def recipe_named(name: str) -> Recipe:
    """A recipe, or an error that says which there are."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe named {name!r}. {hint(name, RECIPES)}")
    return RECIPES[name]
