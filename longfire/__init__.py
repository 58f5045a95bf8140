"""longfire: position encodings for transformers that are trained short and used long, with FIRE at the centre.

Everything public is loaded on first use, so that `import longfire` and `longfire --help` answer at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longfire.validation import hint

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longfire import encodings as encodings
    from longfire import engines as engines
    from longfire import model as model
    from longfire import theorem as theorem
    from longfire.encodings import ENCODINGS as ENCODINGS
    from longfire.encodings import FIRE as FIRE
    from longfire.encodings import T5 as T5
    from longfire.encodings import ALiBi as ALiBi
    from longfire.encodings import DistanceBias as DistanceBias
    from longfire.encodings import KerpleLog as KerpleLog
    from longfire.encodings import KerplePower as KerplePower
    from longfire.encodings import Learned as Learned
    from longfire.encodings import NoPE as NoPE
    from longfire.encodings import PositionEncoding as PositionEncoding
    from longfire.encodings import RoPE as RoPE
    from longfire.encodings import RoPEPI as RoPEPI
    from longfire.encodings import Sandwich as Sandwich
    from longfire.encodings import Sinusoidal as Sinusoidal
    from longfire.encodings import YaRN as YaRN
    from longfire.encodings import build_encoding as build_encoding
    from longfire.encodings import parameter_groups as parameter_groups
    from longfire.encodings import position_parameters as position_parameters
    from longfire.encodings import register as register
    from longfire.engines import AttentionPlan as AttentionPlan
    from longfire.engines import PreparedBias as PreparedBias
    from longfire.engines import attention as attention
    from longfire.engines import attention_plan as attention_plan
    from longfire.engines import prepare_bias as prepare_bias

_PUBLIC = {
    "encodings": [
        *("ENCODINGS", "build_encoding", "register", "PositionEncoding", "DistanceBias"),
        *("position_parameters", "parameter_groups"),
        *("FIRE", "ALiBi", "KerpleLog", "KerplePower", "T5", "Sandwich"),
        *("RoPE", "RoPEPI", "YaRN", "Sinusoidal", "Learned", "NoPE"),
    ],
    "engines": ["attention", "attention_plan", "AttentionPlan", "prepare_bias", "PreparedBias"],
    "theorem": [],
}
_HOME = {name: room for room, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *_PUBLIC, *_HOME]  # not `model`: `from longfire import *` and help() need no transformers


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
