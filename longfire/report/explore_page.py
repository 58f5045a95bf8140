"""A page that draws the learned bias of each layer and head for a query on a slider, from 1 to far beyond training."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from longfire.encodings import FIRE, PositionEncoding
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL, learned_c, learned_L, look_back
from longfire.report.html import write_page
from longfire.report.learned import (
    FAR,
    Learned,
    described,
    read_checkpoint,
)
from longfire.report.table import text_table

ABOUT = (
    "A query looks back at the keys before it. What its position adds to the attention logits is the bias, drawn here "
    "for each layer and head. Move the query beyond the training length and see what the model does where it was never "
    "trained."
)
HEADS = (
    "If all keys were alike, how far back would a head look on average? Much nearer than a head without a bias: it is "
    "local. Much farther: anti-local. Choose a head to find it in its layer below."
)


def explore_page(checkpoints: Sequence[Path], path: Path) -> list[Learned]:
    """Write the page for one checkpoint, or two side by side; what was read from them."""
    if not 1 <= len(checkpoints) <= 2:
        raise ValueError(f"one checkpoint, or two to compare, not {len(checkpoints)}.")
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
                "layers": [described(encoding, farthest) for encoding in model.encodings],
            }
            for name, model in zip(names, models, strict=True)
        ],
    }
    write_page(path, title="Learned position biases", body=_body(models, names), data=data, scripts=("explore.js",))
    return models


def explore_table(models: Sequence[Learned]) -> str:
    """c, L and the local and anti-local heads of each layer, at the training length."""
    blocks = []
    for model in models:
        rows = []
        for i, encoding in enumerate(model.encodings):
            far = look_back(encoding, model.trained).tolist()
            local, anti = sum(x < LOCAL for x in far), sum(x > ANTI_LOCAL for x in far)
            c, L = learned_c(encoding), learned_L(encoding)
            rows.append([_layer(model, i), _number(c), _number(L), str(local), str(anti), str(len(far) - local - anti)])
        title = f"{model.name}: {_about(model)}"
        blocks.append(f"{title}\n{text_table(['layer', 'c', 'L', 'local', 'anti-local', 'even'], rows)}")
    return "\n\n".join([*blocks, "local, anti-local, even: heads, for a query at the training length."])


def _about(model: Learned) -> str:
    horizon = getattr(model.encodings[0], "horizon", None)
    stops = "" if horizon is None else f", horizon {horizon:,}"
    return f"{model.encoding}, trained at {model.trained:,}{stops}"


def _layer(model: Learned, i: int) -> str:
    return str(i + 1) if model.per_layer else "all"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def _short_names(names: Sequence[str]) -> list[str]:
    """The paths without the folders that both are in."""
    parts = [Path(name).parts for name in names]
    same = 0
    while len(parts) > 1 and all(len(path) > same + 1 for path in parts) and parts[0][same] == parts[1][same]:
        same += 1
    if len(parts) == 1:
        same = max(0, len(parts[0]) - 2)
    return [str(Path(*path[same:])) for path in parts]


def _body(models: Sequence[Learned], names: Sequence[str]) -> str:
    shown = [(model, escape(name)) for model, name in zip(models, names, strict=True)]
    what = " and ".join(f"<b>{name}</b> ({escape(_about(model))})" for model, name in shown)
    return f"""<h1>Learned position biases</h1>
<p>{what}. {escape(ABOUT)}</p>
<div id="query"></div>
<section id="heads"><h2>Local and anti-local heads</h2><p class="soft">{escape(HEADS)}</p></section>
<section id="curves"><h2>The bias of each head</h2></section>
{_parameters(models, names)}"""


def _parameters(models: Sequence[Learned], names: Sequence[str]) -> str:
    fires = [(model, escape(name)) for model, name in zip(models, names, strict=True) if model.encoding == "fire"]
    if not fires:
        return ""
    blocks = []
    for model, name in fires:
        rows = "".join(
            f"<tr><th>{_layer(model, i)}</th><td>{_number(learned_c(one))}</td><td>{_number(learned_L(one))}</td></tr>"
            for i, one in enumerate(model.encodings)
        )
        blocks.append(
            f'<div><h3>{name}</h3><div class="scroll"><table><thead><tr><th>layer</th><th>c</th><th>L</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></div></div>"
        )
    said = {formula(model.encodings[0]): f"<b>{name}</b>: " for model, name in fires}
    about = "".join(f'<p class="soft">{name if len(said) > 1 else ""}{text}</p>' for text, name in said.items())
    return (
        f'<section id="parameters"><h2>Learned c and L</h2>{about}<div class="panels">{"".join(blocks)}</div></section>'
    )


def formula(fire: PositionEncoding) -> str:
    """What this FIRE computes, with its switches, and which queries share a curve."""
    assert isinstance(fire, FIRE)
    threshold, horizon = fire.threshold is not None, f"{fire.horizon:,}" if fire.horizon else ""
    counted = "max(L, query)" if threshold else "query"
    if horizon:
        counted = f"min({counted}, {horizon})"
        up_to_L = "up to L share one curve, and those " if threshold else ""
        curve = (
            f"Queries {up_to_L}from position {horizon} on, the horizon, share one{' too' if threshold else ' curve'}; "
            f"{'between' if threshold else 'before'}, it stretches with the query. Of distances beyond {horizon}, f's "
            f"input is above 1."
        )
    elif threshold:
        curve = "Up to L all queries share one curve; beyond, it stretches with the query."
    else:
        curve = "The curve stretches with the query."
    psi = "log(c·x + 1)" if fire.log else "x"
    return f"FIRE is f( ψ(distance) ÷ ψ({counted}) ) with ψ(x) = {psi}. {curve}"
