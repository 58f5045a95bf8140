"""A page that plots a checkpoint's learned bias per layer and head, with a slider for the query position.

The page evaluates FIRE from its weights; other encodings are sampled.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longfire.encodings import ENCODINGS, FIRE, PositionEncoding
from longfire.encodings.base import EncodingLinear
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL, bias_of, learned_c, learned_L, look_back
from longfire.report.html import write_page
from longfire.report.table import Table, render_text
from longfire.theorem import Cosine, Step
from longfire.validation import load_without_code

FAR = 16
"""The slider ends at this multiple of the training length."""
ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.GELU: "gelu", Step: "step", Cosine: "cos"}
"""The activations that the page can evaluate."""
DENSE = 256
"""Sample every distance up to this one; T5's steps end at 128."""
ABOUT = (
    "The encoding adds a bias to the attention logits, which depends on the positions of query and key and is plotted "
    "here for each layer and head. Move the query past the training length to see how the bias extrapolates."
)
HEADS = (
    "How far back does a head look on average if all keys are equal? Local heads look back much less far than a head "
    "without a bias, anti-local heads much farther. Click a head to highlight it in its layer below."
)


@dataclass(frozen=True)
class LearnedBias:
    """A checkpoint's position encodings."""

    name: str
    encoding: str
    trained: int
    """The training length."""
    encodings: list[PositionEncoding]
    per_layer: bool
    """Whether each layer has its own encoding."""

    def __str__(self) -> str:
        horizon = getattr(self.encodings[0], "horizon", None)
        return f"{self.encoding}, trained at {self.trained:,}{f', horizon {horizon:,}' if horizon else ''}"

    def layer(self, i: int) -> str:
        return str(i + 1) if self.per_layer else "all"


def read_checkpoint(folder: Path) -> LearnedBias:
    """Read the encodings from a folder written by `save_pretrained`, or from a run's folder."""
    from transformers import AutoModelForCausalLM

    from longfire.model.generate import quiet_transformers
    from longfire.model.loading import find_checkpoint  # the import registers longfire's models

    checkpoint = find_checkpoint(folder)
    with quiet_transformers(keep_warnings=True):
        model: Any = load_without_code(AutoModelForCausalLM, checkpoint, dtype="auto", local_files_only=True)
    encodings = [module for module in model.modules() if isinstance(module, PositionEncoding)]
    name = next((name for name, cls in ENCODINGS.items() if encodings and type(encodings[0]) is cls), None)
    if not any(encoding.has_bias for encoding in encodings):
        encoding = f"its encoding is {name!r}" if name else f"a {model.config.model_type} model has its own encoding"
        raise ValueError(
            f"{folder} has no bias to plot: {encoding}, which adds none to the attention logits. longfire explore "
            "without a checkpoint shows every encoding."
        )
    learned = any(True for encoding in encodings for _ in encoding.parameters())
    return LearnedBias(
        name=str(folder),
        encoding=name or type(encodings[0]).__name__,
        trained=int(getattr(model.config, "max_position_embeddings", None) or 2048),
        encodings=encodings if learned else encodings[:1],
        per_layer=learned and len(encodings) > 1,
    )


def explore_page(checkpoints: Sequence[Path], path: Path) -> list[LearnedBias]:
    """Write the page for one checkpoint, or two side by side, and return what was read from them."""
    models = [read_checkpoint(Path(folder)) for folder in checkpoints]
    farthest = FAR * max(model.trained for model in models)
    names = _short_names([model.name for model in models])
    data = {
        "farthest": farthest,
        "local": LOCAL,
        "antiLocal": ANTI_LOCAL,
        "models": [
            {
                "name": name,
                "encoding": model.encoding,
                "trained": model.trained,
                "perLayer": model.per_layer,
                "layers": [bias_data(encoding, farthest) for encoding in model.encodings],
            }
            for name, model in zip(names, models, strict=True)
        ],
    }
    write_page(path, title="Learned position biases", body=_body(models, names), data=data, scripts=("explore.js",))
    return models


def explore_table(models: Sequence[LearnedBias]) -> str:
    """c, L and the number of local and anti-local heads of each layer, at the training length."""
    tables = []
    for model in models:
        rows = []
        for i, encoding in enumerate(model.encodings):
            ratios = look_back(encoding, model.trained).tolist()
            local, anti = sum(x < LOCAL for x in ratios), sum(x > ANTI_LOCAL for x in ratios)
            heads = map(str, (local, anti, len(ratios) - local - anti))
            rows.append([*_parameters(model, i), *heads])
        columns = ["layer", "c", "L", "local", "anti-local", "even"]
        tables.append(Table(columns, rows, title=f"{model.name}: {model}"))
    return render_text([*tables, "local, anti-local, even: number of heads, for a query at the training length."])


def _parameters(model: LearnedBias, i: int) -> list[str]:
    """Layer, c and L."""
    learned = (learned_c(model.encodings[i]), learned_L(model.encodings[i]))
    return [model.layer(i), *("–" if value is None else f"{value:,.4g}" for value in learned)]


def _short_names(names: Sequence[str]) -> list[str]:
    """The paths without their common parent folders."""
    parts = [Path(name).parts for name in names]
    if len(parts) == 1:
        return [str(Path(*parts[0][-2:]))]
    shared = 0
    while all(len(path) > shared + 1 for path in parts) and parts[0][shared] == parts[1][shared]:
        shared += 1
    return [str(Path(*path[shared:])) for path in parts]


def _body(models: Sequence[LearnedBias], names: Sequence[str]) -> str:
    named = [(model, escape(name)) for model, name in zip(models, names, strict=True)]
    subjects = " and ".join(f"<b>{name}</b> ({escape(str(model))})" for model, name in named)
    return f"""<h1>Learned position biases</h1>
<p>{subjects}. {escape(ABOUT)}</p>
<div id="query"></div>
<section id="heads"><h2>Local and anti-local heads</h2><p class="soft">{escape(HEADS)}</p></section>
<section id="curves"><h2>The bias of each head</h2></section>
{_fire_section([(model, name) for model, name in zip(models, names, strict=True) if model.encoding == "fire"])}"""


def _fire_section(fires: Sequence[tuple[LearnedBias, str]]) -> str:
    """FIRE's formula, and c and L by layer."""
    if not fires:
        return ""
    tables = [
        Table(["layer", "c", "L"], [_parameters(model, i) for i in range(len(model.encodings))], title=name).html()
        for model, name in fires
    ]
    formulas = {formula(model.encodings[0]): f"<b>{escape(name)}</b>: " for model, name in fires}
    about = "".join(f'<p class="soft">{name if len(formulas) > 1 else ""}{text}</p>' for text, name in formulas.items())
    panels = "".join(f"<div>{table}</div>" for table in tables)
    return f'<section id="parameters"><h2>Learned c and L</h2>{about}<div class="panels">{panels}</div></section>'


def formula(fire: PositionEncoding) -> str:
    """The formula of this FIRE with its options, and which queries share a curve."""
    assert isinstance(fire, FIRE)
    threshold, horizon = fire.threshold is not None, f"{fire.horizon:,}" if fire.horizon else ""
    normalizer = "max(L, query)" if threshold else "query"
    if horizon:
        normalizer = f"min({normalizer}, {horizon})"
        if threshold:
            curve = (
                f"Queries up to L share one curve, and so do queries from the horizon, {horizon}, on; in between, it"
            )
        else:
            curve = f"Queries from the horizon, {horizon}, on share one curve; before, it"
        curve += f" stretches with the query. At distances beyond {horizon}, the input of f exceeds 1."
    elif threshold:
        curve = "Queries up to L share one curve; beyond, it stretches with the query."
    else:
        curve = "The curve stretches with the query."
    psi = "log(c·x + 1)" if fire.log else "x"
    return f"FIRE is f( ψ(distance) ÷ ψ({normalizer}) ) with ψ(x) = {psi}. {curve}"


def bias_data(encoding: PositionEncoding, farthest: int) -> dict[str, Any]:
    """Data for the page: the weights of a FIRE, or samples of the bias for queries up to `farthest`."""
    learned = {
        "c": learned_c(encoding),
        "L": learned_L(encoding),
        "horizon": getattr(encoding, "horizon", None),
    }
    if isinstance(encoding, FIRE) and is_plain(encoding):
        return learned | {"kind": "fire", **_weights(encoding)}
    if encoding.distance_only:
        return learned | {"kind": "sampled", "rows": [_samples(encoding, farthest)]}
    queries = sorted({round(farthest ** (k / 24)) for k in range(25)})
    return learned | {"kind": "sampled", "rows": [_samples(encoding, query, ratio=1.2, dense=16) for query in queries]}


def is_plain(fire: FIRE) -> bool:
    """Whether the page can evaluate this FIRE: one side, no overridden methods, and only known layers."""
    methods = ("psi", "normalized_distance", "f", "bias")
    overrides_none = all(getattr(type(fire), name) is getattr(FIRE, name) for name in methods)
    known = (EncodingLinear, *ACTIVATIONS)
    return (
        not fire.bidirectional
        and overrides_none
        and all(type(layer) in known and getattr(layer, "approximate", "none") == "none" for layer in fire.mlp)
    )


def _weights(fire: FIRE) -> dict[str, Any]:
    layers: list[dict[str, Any]] = []
    for layer in fire.mlp:
        if isinstance(layer, EncodingLinear):
            size = {"in": layer.in_features, "out": layer.out_features}
            layers.append({**size, "weight": _packed(layer.weight), "bias": _packed(layer.bias), "activation": None})
        else:
            layers[-1]["activation"] = ACTIVATIONS[type(layer)]
    return {"log": fire.log, "first": fire.first_position, "eps": fire.eps, "heads": fire.num_heads, "mlp": layers}


def _samples(encoding: PositionEncoding, query: int, ratio: float = 1.05, dense: int = DENSE) -> dict[str, Any]:
    distances = sample_distances(query, ratio, dense)
    values = bias_of(encoding, query, distances)
    return {"query": query, "at": distances, "heads": values.shape[0], "values": _packed(values)}


def sample_distances(query: int, ratio: float, dense: int) -> list[int]:
    """Every distance up to `dense`, then a geometric sequence up to the first key."""
    steps = math.ceil(math.log(max(query / dense, 1)) / math.log(ratio))
    sparse = {min(query - 1, round(dense * ratio**k)) for k in range(1, steps + 1)}
    return sorted({*range(min(query, dense + 1)), *sparse, query - 1})


def _packed(values: Tensor) -> str:
    """Little-endian float32 in base64: exact, and a third the size of text."""
    numbers = values.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4")
    return base64.b64encode(numbers.tobytes()).decode("ascii")
