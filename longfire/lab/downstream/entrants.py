"""Checkpoints that are put side by side: as they are given, what they are called, and whether they can be taken."""

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
from longfire.evaluation.scoring import position_limit
from longfire.evaluation.seeds import are_seeds
from longfire.model import LongfireConfig, LongfireForCausalLM, extend, refuse_beyond
from longfire.model.extension import STRETCHED, extended
from longfire.model.generate import TOKENIZER_FILES, load
from longfire.training.initial_model import checkpoint_folder, digest, pretrained_by, run_record
from longfire.validation import at_least, load_without_code, one_of

GIVEN = re.compile(r"(?P<folder>.+):(?P<name>[a-z_\-]+)=(?P<length>\w+)")


@dataclass(frozen=True)
class Entrant:
    """A checkpoint, as it is or with RoPE extended."""

    given: str
    folder: Path
    """Where its config.json is."""
    config: Any
    """As it will be loaded."""
    label: str
    encoding: str
    """A name in `ENCODINGS`, with -s where one is shared; or the kind of another's model."""
    key: str
    """For names of folders: the same for the same weights, wherever they are and whatever is beside them."""
    extension: tuple[str, int] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is a longfire model, and not another that transformers knows."""
        return isinstance(self.config, LongfireConfig)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The checkpoint's."""
        if not any((self.folder / name).is_file() for name in TOKENIZER_FILES):
            raise ValueError(f"{self.folder} has no tokenizer. Save the model's there.")
        found: Any = load_without_code(AutoTokenizer, self.folder, local_files_only=True)
        if not isinstance(found, PreTrainedTokenizerFast):
            raise ValueError(
                f"the tokenizer in {self.folder} is a {type(found).__name__}, and not one of the fast kind, with a "
                f"tokenizer.json, which this needs."
            )
        return found

    def start(self) -> Path | LongfireForCausalLM:
        """What fine-tuning begins with."""
        return self.folder if self.extension is None else extend(self.folder, *self.extension)

    def loaded(self, device: str | None, dtype: str | None) -> tuple[Any, Any]:
        """Model and tokenizer."""
        model, tokenizer = load(self.folder, None, device, dtype)
        if self.extension is not None:
            model = extend(model, *self.extension)
        return model, tokenizer

    def empty_model(self) -> Any:
        """Its shape, without weights."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False)

    def refuse_beyond(self, length: int) -> None:
        """Refuse a length that it has no positions for."""
        model = self.empty_model()
        try:
            refuse_beyond(model, length)
            if (limit := position_limit(model)) is not None and length > limit[0]:
                raise ValueError(
                    f"the model has {limit[0]} learned positions ({limit[1]}), and {length} tokens were asked for."
                )
        except ValueError as error:
            raise ValueError(f"{self.given}: {error}") from error

    def has_starts(self) -> bool:
        """Whether its encoding may have begun as another."""
        name = self.encoding.removesuffix(SHARED)
        return name in ENCODINGS and has_starts(ENCODINGS[name])

    def began_as(self, recipe: dict[str, Any]) -> str | None:
        """What its encoding began as, by its configuration or, if that is from before `init`, by its recipe."""
        init = (getattr(self.config, "position_encoding", None) or {}).get("init")
        if init is not None:
            return None if init == RANDOM else str(init)
        return recipe.get("init") if self.has_starts() and not recipe.get("init_from") else None

    def about(self) -> dict[str, Any]:
        """For the record: what it is, and what it was trained on and at, as far as it is known."""
        own, began = run_record(self.folder), pretrained_by(self.folder)
        tuned = own if "chosen_by" in own else {}
        recipe, on = tuned.get("recipe", {}), tuned.get("identity", {}).get("on", {})
        how = {**{key: recipe.get(key) for key in ("name", "steps", "batch_size", "seed")}, "select": on.get("select")}
        return {
            "label": self.label,
            "key": self.key,
            "encoding": self.encoding,
            "seed": began.get("seed"),
            "options": {key: value for key, value in _options(self.config).items() if key != "name"},
            "checkpoint": self.given,
            "parameters": sum(p.numel() for p in self.empty_model().parameters()),
            "trained_length": getattr(self.config, "max_position_embeddings", None),
            "extended_to": _target(self.config),
            "tokens_seen": own.get("tokens_seen"),
            "corpus": read_json(self.folder / "corpus.json").get("name"),
            "start": self.began_as(began),
            "horizon": _options(self.config).get("horizon"),
            "finetuned_length": recipe.get("length"),
            "finetuned_on": on.get("tasks"),
            "finetuned": how if tuned else None,
        }


class Known:
    """A checkpoint, loaded when it is first asked for."""

    def __init__(self, checkpoint: Path | Entrant, device: str | None = None, dtype: str | None = None) -> None:
        self.checkpoint, self.device, self.dtype = checkpoint, device, dtype
        self.found: tuple[Any, Any] | None = None

    def __call__(self) -> tuple[Any, Any]:
        """Model and tokenizer."""
        if self.found is None:
            one = self.checkpoint if isinstance(self.checkpoint, Entrant) else entrants([self.checkpoint])[0]
            on_gpu = torch.cuda.is_available() if self.device is None else self.device != "cpu"
            self.found = one.loaded(self.device, self.dtype or ("bfloat16" if on_gpu else None))
        return self.found


def entrants(given: Sequence[str | Path]) -> list[Entrant]:
    """Each checkpoint, FOLDER or FOLDER:rope_pi=N or FOLDER:yarn=N, with a label of its own, but for seeds."""
    if not given:
        raise ValueError("give at least one checkpoint.")
    found = [_entrant(str(one)) for one in given]
    if twice := [one.given for i, one in enumerate(found) if one.key in [other.key for other in found[:i]]]:
        raise ValueError(f"the checkpoint {twice[0]} is there twice. Give it once.")
    for by in (_by_target, _by_options):
        shared = _shared(found)
        found = [replace(one, label=one.label + by(one, shared.get(one.label, []))) for one in found]
    unknown = {label for label, same in _shared(found).items() if not are_seeds([one.about() for one in same])}
    return [replace(one, label=f"{one.label} ({one.given})") if one.label in unknown else one for one in found]


def _shared(found: Sequence[Entrant]) -> dict[str, list[Entrant]]:
    """Those that have a label which another has, too."""
    counts = Counter(one.label for one in found)
    return {label: [one for one in found if one.label == label] for label in counts if counts[label] > 1}


def _by_target(one: Entrant, others: list[Entrant]) -> str:
    """What to put after a label that several have: the length that RoPE was extended to."""
    return f" {_target(one.config)}" if others and _target(one.config) else ""


def _by_options(one: Entrant, others: list[Entrant]) -> str:
    """Options of the encoding in which they differ."""
    theirs, own = [_all_options(other.config) for other in others], _options(one.config)
    differing = {key: value for key, value in own.items() if any(other.get(key) != value for other in theirs)}
    return _in_brackets(differing)


def _entrant(given: str) -> Entrant:
    matched = GIVEN.fullmatch(given)
    extension = None
    source = given
    if matched and not Path(given).exists():
        source = matched["folder"]
        one_of(f"what {source} is extended to", matched["name"], STRETCHED)
        if not matched["length"].isdigit():
            raise ValueError(f"{given}: the length to extend to must be a whole number, not {matched['length']!r}.")
        extension = (matched["name"], int(matched["length"]))
        at_least("the length to extend to", extension[1], 1)
    folder = checkpoint_folder(source)
    config: Any = load_without_code(AutoConfig, folder, local_files_only=True)
    if extension is not None:
        if not isinstance(config, LongfireConfig):
            raise ValueError(f"{given}: only a longfire model can be extended, and this one is {config.model_type!r}.")
        config.position_encoding = extended(config, *extension)
    label, encoding = _called(config, Path(source))
    stretch = "" if extension is None else f"-{extension[1]}"
    key = f"{encoding.replace('_', '-')}{stretch}-{digest(folder)[:8]}"
    return Entrant(given, folder, config, label, encoding, key, extension)


def _called(config: Any, folder: Path) -> tuple[str, str]:
    """Label and encoding; a model of others is called as its folder is."""
    name = _options(config).get("name")
    if name not in ENCODINGS:
        return folder.name, str(config.model_type)
    shared = getattr(config, "share_position_encoding", False) and ENCODINGS[name].scope == "layer"
    encoding = name + (SHARED if shared else "")
    own = {key: value for key, value in _options(config).items() if key != "name"}
    return label_title(encoding) + _in_brackets(changed_options(name, own)), encoding


def _in_brackets(options: dict[str, Any]) -> str:
    return f" ({', '.join(f'{key}={value}' for key, value in options.items())})" if options else ""


def _options(config: Any) -> dict[str, Any]:
    """Of its encoding, with the name and without what it began as; none of a model of others."""
    options = dict(getattr(config, "position_encoding", None) or {})
    options.pop("init", None)
    return options


def _all_options(config: Any) -> dict[str, Any]:
    """With those that are as they are unless given."""
    own = _options(config)
    usual = option_names(ENCODINGS[own["name"]]) if own.get("name") in ENCODINGS else {}
    return {**{name: option.default for name, option in usual.items()}, **own}


def _target(config: Any) -> int | None:
    """The length that RoPE was extended to."""
    target = _options(config).get("target_length")
    return None if target is None else int(target)
