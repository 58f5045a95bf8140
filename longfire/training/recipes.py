"""Pretraining recipes: each states a whole run; a variant states only its difference from another recipe.

`base` and `large` are the paper's tables with GPT-3's schedule (Brown et al. 2020), which the paper refers to: warm-up
over 375 million tokens, cosine decay to a tenth at 260 billion, constant from there.
"""

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Self

from huggingface_hub.errors import StrictDataclassError

from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.encodings.fire import RANDOM, STARTS
from longfire.encodings.labels import parse_label
from longfire.encodings.positions import check_range
from longfire.encodings.registry import SHARED, has_starts, option_names
from longfire.model import SIZES, LongfireConfig
from longfire.model.extension import EXTENSIONS
from longfire.tasks.synthetic import synthetic_task
from longfire.training.base_recipe import RENAMED, TRAINING_LENGTH, BaseRecipe, accept_old_names
from longfire.validation import at_least, hint, one_of, positive, renamed

INIT, SEGMENTS = "init", "segments"


@accept_old_names
@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """Pretraining."""

    size: str = field(kw_only=True)
    """Model size: a name in `longfire.model.SIZES`."""
    encoding: str = "fire"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    share_position_encoding: bool = False
    """One encoding for all layers (FIRE-S)."""
    init: str | None = None
    """FIRE's initialisation: "kerple_log", "alibi", or None for random. Other encodings ignore it."""
    horizon: int | str | None = None
    """The position at which FIRE's normaliser stops growing: tokens, or "length" for the training length. None, as in
    the paper: it never stops. Other encodings ignore it."""
    cuda_graphs: bool | None = None
    """Run compiled layers as CUDA graphs, since a small model's kernels are shorter than their launches. None: on a
    single GPU without gradient accumulation."""
    init_from: str | None = None
    """Checkpoint folder to continue from. Its size, encoding and tokenizer must match; `init` has no effect."""
    extend_to: int | None = None
    """Target length of "rope_pi" or "yarn", when the checkpoint has "rope"."""
    tokenizer: str = "bpe"
    """"bytes", "bpe" (trained on the corpus), or a Hugging Face tokenizer's folder or name."""
    vocab_size: int = 8192
    """Vocabulary size of a BPE."""
    random_positions: int | None = None
    """Range of randomised positions (Ruoss et al. 2023), at least the longest test length. None: tokens are counted."""
    packing: str | None = None
    """"segments": tokens attend within their own document alone. None: to all earlier tokens of the sequence."""
    task: str | None = None
    """A synthetic task to train on, in `longfire.tasks.SYNTHETIC`, at lengths up to `length`. None: text."""

    def __post_init__(self) -> None:
        self._check_horizon_unit()
        super().__post_init__()
        one_of("the size", self.size, SIZES)
        if self.encoding not in ENCODINGS:
            raise ValueError(f"there is no encoding named {self.encoding!r}. {hint(self.encoding, ENCODINGS)}")
        options, init = self.encoding_options, self.init
        if INIT in options and has_starts(ENCODINGS[self.encoding]):
            init = options[INIT]
            if self.init is not None and self.init != (init or RANDOM):
                raise ValueError(
                    f"init={self.init} and the encoding's init={init} contradict each other. Pass one of them."
                )
            object.__setattr__(self, "encoding_options", {name: options[name] for name in options if name != INIT})
        object.__setattr__(self, INIT, None if init == RANDOM else init)
        one_of(INIT, self.init, (None, *STARTS))
        one_of("packing", self.packing, (None, SEGMENTS))
        if self.packing is not None and (self.task is not None or self.random_positions is not None):
            other = "random_positions" if self.task is None else f"the task {self.task}"
            raise ValueError(f"packing={self.packing!r} is for documents counted from 0: omit it with {other}.")
        if self.task is not None:
            synthetic_task(self.task).check_length(self.length)
        if self.random_positions is not None:
            check_range(self.sequence_length, self.random_positions)
        if self.extend_to is not None:
            at_least("extend_to", self.extend_to, 1)
            one_of("the encoding to extend to", self.encoding, EXTENSIONS)
            if self.init_from is None:
                raise ValueError(
                    f"extend_to={self.extend_to} needs a checkpoint with 'rope': pass one (--from FOLDER)."
                )

    @renamed(**RENAMED)
    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed. The encoding's option `init` sets the field."""
        options = changes.get("encoding_options") or {}
        starts = isinstance(options, dict) and INIT in options
        if starts and has_starts(ENCODINGS.get(changes.get("encoding", self.encoding), PositionEncoding)):
            changes[INIT] = changes.get(INIT, options[INIT]) or RANDOM  # not this recipe's
        return super().but(**changes)

    def with_encoding(self, label: str, **changes: Any) -> Self:
        """A copy with the encoding and options of a label. Other changes take precedence."""
        name, shared, options = parse_label(label)
        own: dict[str, Any] = {"encoding": name}
        if shared:
            own["share_position_encoding"] = True
        if options:
            own["encoding_options"] = {**self.encoding_options, **options}
        return self.but(**{**own, **changes})

    @property
    def sequence_length(self) -> int:
        """Maximum tokens in a training sequence."""
        return self.length if self.task is None else synthetic_task(self.task).sequence_length(self.length)

    def identity(self) -> dict[str, Any]:
        """What identifies a run. `init` and the horizon count only for encodings that have them."""
        found = super().identity()
        found.pop("horizon")
        unused = ["task"] if self.task is None else ["tokenizer", "vocab_size"]
        unused += [name for name in ("random_positions", "packing") if found[name] is None]
        for name in unused:
            found.pop(name)
        horizon = self.position_encoding().get("horizon")
        others = {name: value for name, value in self.encoding_options.items() if name != "horizon"}
        found["encoding_options"] = others if horizon is None else {**others, "horizon": horizon}
        if not has_starts(ENCODINGS[self.encoding]):
            found.pop(INIT)
        elif self.init is not None and others.get("init_c") is not None:
            found["init_c_honoured"] = True  # earlier releases started with c = 1 whatever init_c was
        return found

    def position_encoding(self) -> dict[str, Any]:
        """The encoding as in a model's configuration.

        FIRE's L starts at a quarter of the training length. Sinusoids are scaled to the initial embeddings.
        """
        options = dict(self.encoding_options)
        known = option_names(ENCODINGS[self.encoding])
        if "init_L" in known:
            options.setdefault("init_L", self.sequence_length / 4)
        if "scale" in known:
            options.setdefault("scale", LongfireConfig.initializer_range)
        if "horizon" in known and self.horizon is not None:
            options.setdefault("horizon", self.sequence_length if self.horizon == TRAINING_LENGTH else self.horizon)
        if has_starts(ENCODINGS[self.encoding]) and self.init is not None:
            options[INIT] = self.init
        return {"name": self.encoding, **options}

    def config(self, vocab_size: int, **special_tokens: Any) -> LongfireConfig:
        """A new model's configuration. Rounds the vocabulary up to a multiple of 128, which is faster on a GPU.

        Refuses invalid options.
        """
        if self.encoding in EXTENSIONS and not {"trained_length", "target_length"} <= self.encoding_options.keys():
            raise ValueError(
                f"{self.encoding!r} extends a checkpoint with 'rope': pass one and a target length (--from RUN "
                f"--extend-to N). To train from scratch, set the options trained_length and target_length."
            )
        encoding = self.position_encoding()
        self._check_horizon(encoding)
        try:
            return LongfireConfig.of_size(
                self.size,
                vocab_size=math.ceil(vocab_size / 128) * 128,
                max_position_embeddings=self.sequence_length,
                position_encoding=encoding,
                share_position_encoding=self.share_position_encoding,
                random_positions=self.random_positions,
                attention_dropout=self.attention_dropout,
                resid_dropout=self.dropout,
                **special_tokens,
            )
        except StrictDataclassError as error:  # the cause has the actual message
            raise ValueError(self._with_remedy(str(error.__cause__ or error))) from error

    def _check_horizon_unit(self) -> None:
        """Refuse a multiple of the training length, the unit of earlier releases."""
        horizon: Any = self.horizon
        if isinstance(horizon, float):
            positive("horizon", horizon)
            now = TRAINING_LENGTH if horizon == 1 else max(1, round(horizon * self.sequence_length))
            raise ValueError(
                f"horizon must be in tokens, or {TRAINING_LENGTH!r} for the training length, not {horizon!r}. For "
                f"{horizon:g} times the training length write horizon={now}."
            )
        if horizon is not None and horizon != TRAINING_LENGTH:
            at_least("horizon (tokens, or 'length')", horizon, 1)

    def _check_horizon(self, encoding: dict[str, Any]) -> None:
        """Refuse a horizon below L: the normaliser would be constant, and L could not be learned."""
        L, horizon = encoding.get("init_L"), encoding.get("horizon")
        if not (isinstance(L, Real) and isinstance(horizon, Integral)) or encoding.get("threshold", "learned") is None:
            return
        if 1 <= float(horizon) < float(L):
            without = self._label(init_L=L, horizon=None)
            tokens = round(float(horizon) * self.sequence_length)
            multiple = f" For {horizon} times the training length write horizon={tokens}."
            raise ValueError(
                f"init_L is {L:g}, above the horizon of {horizon} tokens: FIRE's normaliser would be the same for "
                f"every query, and L would not be learned. Use an init_L of at most {horizon}, or no horizon: "
                f"{without}. For a constant normaliser write threshold=fixed,init_L={horizon},horizon={horizon}."
                f"{multiple if self.horizon == horizon else ''}"
            )

    def _with_remedy(self, message: str) -> str:
        """An encoding's error message. If it is about `init`, add where that comes from and how to avoid it."""
        if self.init is None or not message.startswith(f"{INIT}="):
            return message
        whose = "recipe's" if RECIPES.get(self.name, self).init == self.init else "requested"
        return (
            f"{message} The {whose} init is {self.init}; for a random one add init=random to the encoding's options: "
            f"{self._label(init=RANDOM)}."
        )

    def _label(self, **changes: Any) -> str:
        """The encoding's label with changed options."""
        options = ",".join(f"{name}={value}" for name, value in {**self.encoding_options, **changes}.items())
        return f"{self.encoding}{SHARED * self.share_position_encoding}:{options}"


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
TASK_TINY = Recipe(
    "task-tiny",
    size="micro",
    task="copy",
    length=16,
    batch_size=32,
    steps=1300,
    learning_rate=2e-3,
    position_lr_factor=0.3,
    attention_dropout=0.1,  # without it the model counts symbols, and fails past the training length
    init="kerple_log",
    checkpoint_every=650,
)
TASK_SMALL = Recipe(
    "task-small",
    size="mini",
    task="copy",
    length=40,
    batch_size=256,
    steps=2500,
    learning_rate=5e-4,
    position_lr_factor=1.0,
    init="kerple_log",
    checkpoint_every=500,
)
ADDITION = TASK_SMALL.but(  # the setting of Zhou et al. (2024)
    name="addition", size="small", task="addition-hints", steps=50_000, learning_rate=3e-4, checkpoint_every=2500
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (TINY, SMALL, BASE, LARGE, BASE_512, TASK_TINY, TASK_SMALL, ADDITION)
}


def recipe_named(name: str) -> Recipe:
    """Look up a recipe by name."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe named {name!r}. {hint(name, RECIPES)}")
    return RECIPES[name]
