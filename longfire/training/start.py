"""What training begins with: random weights, or a checkpoint's, as they are or with RoPE extended."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from transformers import set_seed

from longfire.atomic_io import read_json
from longfire.encodings import ENCODINGS
from longfire.encodings.registry import option_names
from longfire.model import SIZES, LongfireConfig, LongfireForCausalLM
from longfire.model.extension import EXTENSIONS, extended_encoding
from longfire.model.inspection import check_length
from longfire.model.loading import checkpoint_in, find_checkpoint
from longfire.training.recipes import AnyRecipe, Recipe

if TYPE_CHECKING:
    from longfire.data import Corpus


def starting_model(recipe: Recipe, corpus: "Corpus") -> LongfireForCausalLM:
    """Of a recipe for pretraining: with weights that are the seed's, or the checkpoint's that it goes on from."""
    set_seed(recipe.seed)
    if recipe.init_from is not None:
        folder = checkpoint_folder(recipe.init_from)
        refuse_other_tokenizer(folder, corpus.tokenizer)
        return going_on(recipe, folder)
    eos = corpus.tokenizer.eos_token_id
    return LongfireForCausalLM(recipe.config(corpus.vocab_size, eos_token_id=eos, bos_token_id=eos, pad_token_id=eos))


def going_on(recipe: Recipe, folder: Path) -> LongfireForCausalLM:
    """A checkpoint's model, for further pretraining."""
    config = config_to_go_on(recipe, folder)
    model = loaded(folder, position_encoding=config.position_encoding)
    check_length(model, recipe.length)
    set_dropout(model, recipe)
    if model.model.encodings[0].max_length is None:
        model.config.max_position_embeddings = recipe.length  # what it is trained at from now on
    return model


def config_to_go_on(recipe: Recipe, folder: Path) -> LongfireConfig:
    """A checkpoint's configuration, with RoPE extended if the recipe says so. Refuses what contradicts the recipe."""
    config: LongfireConfig = LongfireConfig.from_pretrained(folder)
    shape = {key: getattr(config, key) for key in SIZES[recipe.size]}
    if shape != SIZES[recipe.size]:
        own = next((name for name, size in SIZES.items() if size == shape), None)
        remedy = f"take a recipe of size {own!r} (--set size={own})" if own else "no recipe has this size"
        raise ValueError(
            f"the checkpoint in {folder} has {shape}, and the recipe's size, {recipe.size!r}, is "
            f"{SIZES[recipe.size]}: {remedy}."
        )
    if recipe.share != config.share_position_encoding:
        raise ValueError(
            f"the checkpoint in {folder} has share_position_encoding={config.share_position_encoding}, and the recipe "
            f"share={recipe.share}. Take the checkpoint's."
        )
    if recipe.extend_to is not None:
        options = dict(recipe.encoding_options)
        asked = extended_encoding(config, recipe.encoding, recipe.extend_to, options.pop("trained_length", None))
        config.position_encoding = {**asked, **options}
    else:
        refuse_contradiction(recipe, config, folder)
        free = ENCODINGS[recipe.encoding].free
        given = {key: value for key, value in recipe.encoding_options.items() if key in free}
        config.position_encoding = {**config.position_encoding, **given}  # type: ignore[dict-item]
    return config


def refuse_contradiction(recipe: Recipe, config: LongfireConfig, folder: Path) -> None:
    """Refuse a checkpoint whose encoding is not the recipe's."""
    saved: dict[str, Any] = dict(config.position_encoding or {})  # type: ignore[arg-type]
    if recipe.encoding != saved["name"]:
        stretch = recipe.encoding in EXTENSIONS and saved["name"] == "rope"
        remedy = "say to which length (--extend-to N)" if stretch else f"take encoding={saved['name']!r}"
        raise ValueError(
            f"the checkpoint in {folder} was trained with {saved['name']!r}, and the recipe has {recipe.encoding!r}: "
            f"{remedy}."
        )
    cls = ENCODINGS[recipe.encoding]
    trained = {key: option.default for key, option in option_names(cls).items()} | saved
    other = {key: value for key, value in recipe.encoding_options.items() if trained.get(key) != value}
    if other := {key: value for key, value in other.items() if key not in cls.free}:
        raise ValueError(
            f"the checkpoint in {folder} was trained with {saved}, and encoding_options are {other}. Leave them out."
        )


def checkpoint_folder(source: str | Path) -> Path:
    """Where the checkpoint is: the folder given, or `model` in a run's. An error where there is none."""
    return find_checkpoint(Path(source))


def loaded(folder: Path, **changes: Any) -> LongfireForCausalLM:
    """A checkpoint's model in float32, in which weights are trained."""
    model: LongfireForCausalLM = LongfireForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes)
    return model


def set_dropout(model: LongfireForCausalLM, recipe: AnyRecipe) -> None:
    """The recipe's, in the model and in the configuration that is saved with it."""
    model.config.resid_dropout, model.config.attention_dropout = recipe.dropout, recipe.attention_dropout
    layers: Any = model.model.layers
    for layer in layers:
        layer.dropout.p = recipe.dropout


def digest(source: str | Path | LongfireForCausalLM) -> str:
    """The same for the same weights and configuration, wherever they are; of a run whose weights are gone, as it said.

    So what was made of a run's model and tested is known as such without that model.
    """
    if not isinstance(source, LongfireForCausalLM) and (said := said_at_the_end(Path(source))) is not None:
        return said
    found = hashlib.blake2b(digest_size=16)
    if isinstance(source, LongfireForCausalLM):
        config, files = source.config.to_dict(), []
        for name, tensor in sorted(source.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    else:
        folder = checkpoint_folder(source)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = weights_in(folder)
    written = {key: value for key, value in config.items() if "version" not in key and not key.startswith("_")}
    found.update(json.dumps(written, sort_keys=True, default=str).encode())
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 22):
                found.update(block)
    return found.hexdigest()


def weights_in(folder: Path) -> list[Path]:
    """The files of them."""
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])


def said_at_the_end(run: Path) -> str | None:
    """Of a run that is done and has no weights any more: its model's digest."""
    return None if weights_in(checkpoint_in(run)) else read_json(run / "done.json").get("digest")


def run_of(folder: Path) -> dict[str, Any]:
    """What the run that made a checkpoint says of itself, if one did."""
    return read_json(folder.parent / "done.json") if folder.name == "model" else {}


def pretrained_by(source: str | Path | LongfireForCausalLM) -> dict[str, Any]:
    """The recipe that a checkpoint was pretrained by, fine-tuned since or not; empty, if it is not known."""
    own = {} if isinstance(source, LongfireForCausalLM) else run_of(checkpoint_folder(source))
    recipe: dict[str, Any] | None = own.get("pretrained_by" if "chosen_by" in own else "recipe")
    return recipe or {}


def refuse_other_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Refuse text in other tokens than those a checkpoint was trained with."""
    file = folder / "tokenizer.json"
    remedy = f"Make the tokens with the checkpoint's tokenizer: --tokenizer {folder}"
    if not file.is_file():
        raise ValueError(f"{folder} has no tokenizer.json, so whether its tokens are the corpus's cannot be known.")
    if vocabulary(Tokenizer.from_file(str(file))) != vocabulary(tokenizer.backend_tokenizer):
        raise ValueError(
            f"the corpus was made into tokens by another tokenizer than {folder}'s, to which they mean other things. "
            f"{remedy}."
        )


def vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """All that decides what a text's tokens are; not how batches are cut or padded."""
    made_of: dict[str, Any] = json.loads(tokenizer.to_str())
    return {key: value for key, value in made_of.items() if key not in ("truncation", "padding")}
