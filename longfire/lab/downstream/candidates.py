"""The checkpoints of an experiment: parsing, labels, and their description in the record."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from longfire.atomic_io import read_json
from longfire.encodings import ENCODINGS
from longfire.encodings.fire import RANDOM
from longfire.encodings.labels import label_title
from longfire.encodings.registry import SHARED, changed_options, has_starts, option_names
from longfire.evaluation.scoring import check_position_limit
from longfire.evaluation.seeds import are_seeds
from longfire.model import LongfireConfig, LongfireForCausalLM, extend
from longfire.model.extension import EXTENSIONS, extended_encoding
from longfire.model.generate import TOKENIZER_FILES, load_model
from longfire.model.loading import find_checkpoint
from longfire.training.initial_model import digest, pretrained_by, run_record
from longfire.validation import at_least, load_without_code, one_of

EXTENDED = re.compile(r"(?P<folder>.+):(?P<name>[a-z_\-]+)=(?P<length>\w+)")
"""FOLDER:rope_pi=N or FOLDER:yarn=N."""


@dataclass(frozen=True)
class Candidate:
    """A checkpoint to fine-tune or test, optionally with RoPE extended."""

    given: str
    """As written on the command line."""
    folder: Path
    """The folder of its config.json."""
    config: Any
    """Includes the extension."""
    label: str
    encoding: str
    """A name in `ENCODINGS`, with -s if shared by all layers; for other models, the model type."""
    key: str
    """Names its folders. Depends only on the weights and the extension."""
    extension: tuple[str, int] | None = None

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The checkpoint's tokenizer."""
        if not any((self.folder / name).is_file() for name in TOKENIZER_FILES):
            raise ValueError(f"{self.folder} has no tokenizer. Save the model's tokenizer there.")
        tokenizer: Any = load_without_code(AutoTokenizer, self.folder, local_files_only=True)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(
                f"the tokenizer in {self.folder} must be a fast tokenizer (tokenizer.json), not a "
                f"{type(tokenizer).__name__}."
            )
        return tokenizer

    def initial_model(self) -> Path | LongfireForCausalLM:
        """The model to fine-tune."""
        return self.folder if self.extension is None else extend(self.folder, *self.extension)

    def load(self, device: str | None, dtype: str | None) -> tuple[Any, Any]:
        """Load model and tokenizer."""
        model, tokenizer = load_for_testing(self.folder, device, dtype)
        return model if self.extension is None else extend(model, *self.extension), tokenizer

    def _empty_model(self) -> Any:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False)

    def check_length(self, length: int) -> None:
        """Refuse a length that the model has no positions for."""
        try:
            check_position_limit(self._empty_model(), length)
        except ValueError as error:
            raise ValueError(f"{self.given}: {error}") from error

    def describe(self) -> dict[str, Any]:
        """The checkpoint and, as far as known, its training, for the record."""
        run, pretraining = run_record(self.folder), pretrained_by(self.folder)
        finetuning = run if "chosen_by" in run else {}
        recipe, on = finetuning.get("recipe", {}), finetuning.get("identity", {}).get("on", {})
        finetuned = {key: recipe.get(key) for key in ("name", "steps", "batch_size", "seed")}
        options = encoding_options(self.config)
        return {
            "label": self.label,
            "key": self.key,
            "encoding": self.encoding,
            "seed": pretraining.get("seed"),
            "options": {key: value for key, value in options.items() if key != "name"},
            "checkpoint": self.given,
            "parameters": sum(p.numel() for p in self._empty_model().parameters()),
            "trained_length": getattr(self.config, "max_position_embeddings", None),
            "extended_to": options.get("target_length"),
            "tokens_seen": run.get("tokens_seen"),
            "corpus": read_json(self.folder / "corpus.json").get("name"),
            "start": self._initialised_as(pretraining),
            "horizon": options.get("horizon"),
            "finetuned_length": recipe.get("length"),
            "finetuned_on": on.get("tasks"),
            "finetuned": {**finetuned, "select": on.get("select")} if finetuning else None,
        }

    def _initialised_as(self, recipe: dict[str, Any]) -> str | None:
        """FIRE's `init`, from its configuration or, in older checkpoints, from the recipe."""
        init = (getattr(self.config, "position_encoding", None) or {}).get("init")
        if init is not None:
            return None if init == RANDOM else str(init)
        name = self.encoding.removesuffix(SHARED)
        has_init = name in ENCODINGS and has_starts(ENCODINGS[name]) and not recipe.get("init_from")
        return recipe.get("init") if has_init else None


def load_for_testing(folder: Path, device: str | None = None, dtype: str | None = None) -> tuple[Any, Any]:
    """Load model and tokenizer from a folder, by default in bfloat16 on a GPU."""
    on_gpu = torch.cuda.is_available() if device is None else device != "cpu"
    return load_model(folder, None, device, dtype or ("bfloat16" if on_gpu else None))


def load_candidates(checkpoints: Sequence[str | Path]) -> list[Candidate]:
    """Load FOLDER, FOLDER:rope_pi=N or FOLDER:yarn=N. Labels are unique, except that seeds share one."""
    if not checkpoints:
        raise ValueError("pass at least one checkpoint.")
    loaded = [_candidate(str(checkpoint)) for checkpoint in checkpoints]
    counts = Counter(one.key for one in loaded)
    if repeated := [one.given for one in loaded if counts[one.key] > 1]:
        raise ValueError(f"the checkpoint {repeated[-1]} is listed twice. Pass it once.")
    for suffix in (_length_suffix, _options_suffix):
        shared = _shared_labels(loaded)
        loaded = [replace(one, label=one.label + suffix(one, shared.get(one.label, []))) for one in loaded]
    ambiguous = {label for label, same in _shared_labels(loaded).items() if not are_seeds([c.describe() for c in same])}
    return [replace(one, label=f"{one.label} ({one.given})") if one.label in ambiguous else one for one in loaded]


def _candidate(given: str) -> Candidate:
    source, extension = _parse_extension(given)
    folder = find_checkpoint(source)
    config: Any = load_without_code(AutoConfig, folder, local_files_only=True)
    if extension is not None:
        if not isinstance(config, LongfireConfig):
            raise ValueError(f"{given}: only longfire models can be extended; this is a {config.model_type!r} model.")
        config.position_encoding = extended_encoding(config, *extension)
    label, encoding = _name_encoding(config, Path(source))
    target = "" if extension is None else f"-{extension[1]}"
    key = f"{encoding.replace('_', '-')}{target}-{digest(folder)[:8]}"
    return Candidate(given, folder, config, label, encoding, key, extension)


def _parse_extension(given: str) -> tuple[str, tuple[str, int] | None]:
    """Split off the extension: `runs/rope-0:yarn=4096` → ("runs/rope-0", ("yarn", 4096))."""
    match = EXTENDED.fullmatch(given)
    if match is None or Path(given).exists():
        return given, None
    one_of(f"the extension of {match['folder']}", match["name"], EXTENSIONS)
    if not match["length"].isdigit():
        raise ValueError(f"{given}: the length to extend to must be a whole number, not {match['length']!r}.")
    at_least("the length to extend to", int(match["length"]), 1)
    return match["folder"], (match["name"], int(match["length"]))


def _name_encoding(config: Any, folder: Path) -> tuple[str, str]:
    """Label and encoding; other models are labelled with their folder's name."""
    options = encoding_options(config)
    name = options.pop("name", None)
    if name not in ENCODINGS:
        return folder.name, str(config.model_type)
    shared = getattr(config, "share_position_encoding", False) and ENCODINGS[name].scope == "layer"
    encoding = name + (SHARED if shared else "")
    return label_title(encoding) + _in_brackets(changed_options(name, options)), encoding


def _shared_labels(candidates: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    counts = Counter(one.label for one in candidates)
    return {label: [one for one in candidates if one.label == label] for label in counts if counts[label] > 1}


def _length_suffix(one: Candidate, same_label: list[Candidate]) -> str:
    target = encoding_options(one.config).get("target_length")
    return f" {target}" if same_label and target else ""


def _options_suffix(one: Candidate, same_label: list[Candidate]) -> str:
    """The options that tell candidates with the same label apart."""
    others = [_with_defaults(encoding_options(other.config)) for other in same_label]
    own = encoding_options(one.config)
    return _in_brackets({key: value for key, value in own.items() if any(o.get(key) != value for o in others)})


def _in_brackets(options: dict[str, Any]) -> str:
    return f" ({', '.join(f'{key}={value}' for key, value in options.items())})" if options else ""


def encoding_options(config: Any) -> dict[str, Any]:
    """The encoding's name and options except `init`; empty for other models."""
    options = dict(getattr(config, "position_encoding", None) or {})
    options.pop("init", None)
    return options


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    defaults = option_names(ENCODINGS[options["name"]]) if options.get("name") in ENCODINGS else {}
    return {**{name: option.default for name, option in defaults.items()}, **options}
