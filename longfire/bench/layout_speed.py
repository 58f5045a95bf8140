"""Time and memory of attention in other layouts than one causal row, relative to their baselines."""

from dataclasses import dataclass
from typing import Any, ClassVar

from longfire.bench.attention_speed import BASELINES, RATIOS, AttentionBenchmark, ratios
from longfire.bench.benchmark import NO_BIAS, Case, Row
from longfire.bench.layouts import DOCUMENTS, LAYOUTS, Arrangement, Comparison, arrange
from longfire.engines import ENGINES
from longfire.validation import one_of


@dataclass(frozen=True, kw_only=True)
class LayoutBenchmark(AttentionBenchmark):
    """Every comparison of the layouts. The default `encodings`, and on a GPU `lengths`, are the layouts' own."""

    layouts: tuple[str, ...]
    subject: str = "layouts"

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "cuda": AttentionBenchmark.defaults["cuda"] | {"lengths": (), "shared_layers": 0},
        "cpu": AttentionBenchmark.defaults["cpu"] | {"lengths": (512,)},
    }

    def __post_init__(self) -> None:
        for name in self.layouts:
            one_of("the layout", name, LAYOUTS)
        super().__post_init__()
        if self.shared_layers:
            raise ValueError("layouts are measured with one encoding per layer. Leave out --shared-layers.")
        for n in self.lengths:
            if n % DOCUMENTS:
                raise ValueError(f"with a layout, a length must be a multiple of {DOCUMENTS}, not {n}.")

    def arrangement(self, case: Case) -> Arrangement:
        return arrange(str(case.arrangement), case.n, self.device)

    def cases(self) -> list[Case]:
        """Every arrangement and its baseline, each once."""
        found = [
            case
            for layout in map(LAYOUTS.__getitem__, self.layouts)
            for n in self.lengths or layout.lengths
            for comparison in layout.comparisons
            for name in self.encodings or comparison.targets
            for baseline in (True, False)
            for case in self._sides(comparison, n, name, baseline)
        ]
        return list(dict.fromkeys(found))

    def _sides(self, comparison: Comparison, n: int, name: str, baseline: bool) -> list[Case]:
        arrangement = comparison.baseline if baseline else comparison.arrangement
        if baseline and comparison.unbiased:
            return [Case(n, NO_BIAS, BASELINES[self.device][0], arrangement=arrangement)]
        default = tuple(ENGINES) if self.device == "cpu" else comparison.engines.get(name, ("fused",))
        return [Case(n, name, engine, arrangement=arrangement) for engine in self.engines or default]

    def add_ratios(self, rows: list[Row]) -> None:
        by_case = {_key(row): row for row in rows}
        for row in rows:
            for comparison in comparisons_of(row, self.layouts):
                base = BASELINES[self.device][0]
                other = (NO_BIAS, base) if comparison.unbiased else (row["encoding"], row["engine"])
                found = by_case.get((comparison.baseline, *other, row["n"]))
                if found is not None and (quotients := ratios(row, found)):
                    row[ratio_name(comparison, self.device)] = quotients


def comparisons_of(row: Row, layouts: tuple[str, ...]) -> list[Comparison]:
    """The comparisons in which this row is the one that is divided."""
    known = (comparison for name in layouts for comparison in LAYOUTS[name].comparisons)
    return [found for found in known if found.arrangement == row["arrangement"] and row["encoding"] != NO_BIAS]


def ratio_name(comparison: Comparison, device: str) -> str:
    """The key of the ratios in a row."""
    return RATIOS[BASELINES[device][0]] if comparison.unbiased else f"÷ {comparison.baseline}"


def _key(row: Row) -> tuple[object, ...]:
    return row["arrangement"], row["encoding"], row["engine"], row["n"]
