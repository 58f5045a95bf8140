"""longfire: position encodings for transformers that are trained short and used long, with FIRE at the centre.

Everything public is loaded on first use, so that `import longfire` and `longfire --help` answer at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longfire import encodings as encodings
    from longfire import engines as engines
    from longfire import theorem as theorem
    from longfire.encodings import ENCODINGS as ENCODINGS
    from longfire.encodings import FIRE as FIRE
    from longfire.encodings import PositionEncoding as PositionEncoding
    from longfire.encodings import build_encoding as build_encoding
    from longfire.encodings import position_parameters as position_parameters
    from longfire.engines import AttentionPlan as AttentionPlan
    from longfire.engines import PreparedBias as PreparedBias
    from longfire.engines import attention as attention
    from longfire.engines import attention_plan as attention_plan
    from longfire.engines import prepare_bias as prepare_bias

_ROOMS = ("encodings", "engines", "theorem")
_HOME = {
    "ENCODINGS": "encodings",
    "FIRE": "encodings",
    "PositionEncoding": "encodings",
    "build_encoding": "encodings",
    "position_parameters": "encodings",
    "AttentionPlan": "engines",
    "PreparedBias": "engines",
    "attention": "engines",
    "attention_plan": "engines",
    "prepare_bias": "engines",
}
__all__ = ["__version__", *_ROOMS, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"longfire.{name}")
    if name in _HOME:
        value = getattr(import_module(f"longfire.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'longfire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
