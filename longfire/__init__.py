"""longfire: FIRE and other position encodings for transformers that are trained short and tested long.

Public names load on first use, so `import longfire` and `longfire --help` are instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longfire.validation import hint

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longfire import encodings as encodings
    from longfire import engines as engines
    from longfire import model as model
    from longfire import parallel as parallel
    from longfire import theorem as theorem
    from longfire.encodings import *  # noqa: F403
    from longfire.engines import *  # noqa: F403

_PUBLIC = {
    "encodings": [
        *("ENCODINGS", "build_encoding", "register", "PositionEncoding", "DistanceBias"),
        *("position_parameters", "parameter_groups", "random_positions"),
        *("FIRE", "ALiBi", "KerpleLog", "KerplePower", "T5", "Sandwich"),
        *("RoPE", "RoPEPI", "YaRN", "Sinusoidal", "Learned", "NoPE"),
    ],
    "engines": ["attention", "attention_plan", "AttentionPlan", "prepare_bias", "PreparedBias"],
    "theorem": [],
    "parallel": [],
}
_HOME = {name: room for room, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *_PUBLIC, *_HOME]  # no `model`: `from longfire import *` must not need transformers


def __getattr__(name: str) -> Any:
    if name in _PUBLIC or name == "model":
        return import_module(f"longfire.{name}")
    if name in _HOME:
        value = getattr(import_module(f"longfire.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"longfire has no {name!r}. {hint(name, [*__all__, 'model'])}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
