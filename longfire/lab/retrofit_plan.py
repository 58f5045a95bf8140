"""A retrofit, its recovery and its tests as a checked plan."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

from longfire.data import Corpus, is_saved, load_corpus
from longfire.data.corpus import local_paths
from longfire.encodings import position_parameters
from longfire.encodings.labels import check_label, label_title, parse_label
from longfire.evaluation.held_out import require_tokenizer
from longfire.evaluation.perplexity import check_options
from longfire.model import retrofit
from longfire.model.generate import TOKENIZER_FILES, quiet_transformers
from longfire.model.loading import find_checkpoint
from longfire.model.retrofits import retrofit_on_meta
from longfire.training.initial_model import digest
from longfire.training.recovery import RetrofitRecipe, add_lora, recovery_recipe
from longfire.validation import at_least, load_without_code

LENGTH_FIELDS = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")
"""Where configurations state the training length."""
FRACTIONS = (0.25, 1, 2, 4)
"""Default test lengths, relative to the recovery's."""


@dataclass(frozen=True)
class RetrofitPlan:
    """What to convert, train and measure. The constructor refuses what it can without reading text or weights."""

    model: str
    """A checkpoint's folder, a run's folder, or a name on the Hugging Face hub."""
    encoding: str | None = None
    """A label. None: FIRE as `longfire.model.retrofit` sets it up, or what equals the model's ALiBi."""
    training_length: int | None = None
    """None: the model's."""
    lora: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recovery's recipe."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `longfire.data.load_corpus`, except for the tokenizer, which is the model's."""
    lengths: Sequence[int] | None = None
    """Test lengths. None: a quarter of the recovery's length, the length, twice and four times it."""
    tokens: int | None = None
    """Maximum tokens to score at each length."""
    evaluate_at: Sequence[int] = ()
    """Steps after which to test, besides the first and the last."""

    def __post_init__(self) -> None:
        if self.encoding is not None:
            check_label(self.encoding)
            if parse_label(self.encoding)[1]:
                raise ValueError(f"{self.encoding!r}: a retrofit gives each layer its own encoding. Omit the -s.")
        if self.lora and not self.recipe.lora_rank:
            raise ValueError("LoRA needs a rank of at least 1: omit lora_rank=0, or train without LoRA.")
        for name in ("source", "validation"):
            local_paths(self.corpus.get(name))
        check_options(self.tested_lengths, "paper", self.tokens, None, None)
        for step in self.evaluate_at:
            at_least("a step to evaluate at", step, 0)
            if step > self.recipe.steps:
                raise ValueError(f"cannot evaluate at step {step}: training ends at step {self.recipe.steps}.")
        _ = self.converted

    @cached_property
    def source(self) -> Path | str:
        """The checkpoint's folder, or the name on the hub."""
        path = Path(self.model).expanduser()
        is_name = self.model.count("/") <= 1 and not self.model.startswith((".", "/", "~"))
        if is_name and not path.exists():
            return self.model
        folder = find_checkpoint(path)
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise ValueError(
                f"{folder} has no tokenizer. Save the model's with tokenizer.save_pretrained({str(folder)!r})."
            )
        return folder

    @cached_property
    def config(self) -> Any:
        """The original's configuration."""
        try:
            config = load_without_code(AutoConfig, self.source)
        except OSError as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(
                f"there is no folder {self.model}, and the Hugging Face hub has no such model within reach: {reason}"
            ) from error
        if config.is_encoder_decoder:
            raise ValueError(
                f"{self.model} is an encoder–decoder ({config.model_type}): its recovery needs inputs with targets, "
                f"not a corpus. Convert it with longfire.model.retrofit(model), and train it on your task."
            )
        return config

    @cached_property
    def length(self) -> int:
        """The training length that the retrofit is set up for."""
        if self.training_length is not None:
            at_least("the training length", self.training_length, 1)
            return self.training_length
        stated = (getattr(self.config, name, None) for name in LENGTH_FIELDS)
        known = next((value for value in stated if isinstance(value, int)), None)
        if known is None:
            raise ValueError(f"the configuration of {self.model} states no training length. Pass --training-length N.")
        return known

    @cached_property
    def recipe(self) -> RetrofitRecipe:
        return recovery_recipe(self.length, self.lora, **self.changes)

    @cached_property
    def tested_lengths(self) -> list[int]:
        default = (max(2, round(self.recipe.length * fraction)) for fraction in FRACTIONS)
        return sorted(set(default if self.lengths is None else self.lengths))

    @cached_property
    def encoding_arguments(self) -> dict[str, Any]:
        """For `retrofit`: the encoding's name, the training length, and options."""
        name, _, options = parse_label(self.encoding) if self.encoding is not None else (None, False, {})
        return {"encoding": name, "training_length": self.length, **options}

    @cached_property
    def converted(self) -> Any:
        """The retrofitted model without weights."""
        return retrofit_on_meta(self.config, **self.encoding_arguments)

    @property
    def title(self) -> str:
        """The new encoding, for tables and plots."""
        return label_title(self.encoding or "fire", trained=self.length)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Number of parameters: all, the encoding's, and those that are trained."""
        model = retrofit_on_meta(self.config, **self.encoding_arguments)
        count = {"all": sum(p.numel() for p in model.parameters())}
        count["encoding"] = sum(p.numel() for p in position_parameters(model))
        if self.recipe.lora_rank:
            with torch.device("meta"):
                model = add_lora(model, self.recipe.lora_rank)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return {**count, "trained": trained if self.recipe.steps else 0}

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """What identifies the run. Names on the hub are identified by their commit."""
        commit = getattr(self.config, "_commit_hash", None)
        return {
            **self.recipe.identity(),
            "model": digest(self.source) if isinstance(self.source, Path) else f"{self.source}@{commit}",
            "position_encoding": self.converted.config.position_encoding,
            "training_length": self.length,
            "corpus": corpus.fingerprint,
        }

    def load_corpus(self, progress: bool = True) -> Corpus:
        """The corpus in the model's tokens. Refuses one that is too short to test on."""
        saved = is_saved(self.corpus.get("source"))
        corpus = load_corpus(**self.corpus, tokenizer=None if saved else self.source, progress=progress)
        if saved:
            require_tokenizer(corpus, load_without_code(AutoTokenizer, self.source), self.model)
        # default lengths are tested as far as there are documents
        corpus.validation.pieces(min(self.tested_lengths) if self.lengths is None else max(self.lengths))
        return corpus

    def load_original(self) -> Any:
        """The model in the precision that it was saved in."""
        with quiet_transformers(keep_warnings=True):
            model: Any = load_without_code(AutoModelForCausalLM, self.source, dtype="auto")
        return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def load_retrofit(self) -> Any:
        """The retrofitted model before training: the same each time."""
        original = self.load_original()
        set_seed(self.recipe.seed)
        return retrofit(original, **self.encoding_arguments)

    def __str__(self) -> str:
        counts, recipe, source = self.parameters, self.recipe, self.corpus.get("source")
        lines = {
            "model": f"{self.source} ({self.config.model_type})",
            "position_encoding": self.converted.config.position_encoding,
            "training_length": self.length,
            "parameters": f"{counts['all']:,}, of which {counts['trained']:,} trained, {counts['encoding']:,} encoding",
            **asdict(recipe),
            "tokens": f"{recipe.tokens:,}: {recipe.steps:,} steps of {recipe.batch_size} × {recipe.length}",
            "corpus": "the Python standard library" if source is None else source,
            "test lengths": ", ".join(f"{n:,}" for n in self.tested_lengths),
            "tested after steps": ", ".join(f"{step:,}" for step in self.points),
        }
        return "\n".join(f"{name:24} {value}" for name, value in lines.items())

    @cached_property
    def points(self) -> list[int]:
        """The steps after which to test, from 0 to the last."""
        return sorted({0, *self.evaluate_at, self.recipe.steps})
