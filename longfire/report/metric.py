"""What a comparison measures at each length: log perplexity on text, exact match on a synthetic task."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev


def mean_and_deviation(values: Iterable[float]) -> tuple[float | None, float | None]:
    """The mean and, for two or more values, the sample standard deviation."""
    numbers = list(values)
    return (fmean(numbers) if numbers else None), (stdev(numbers) if len(numbers) > 1 else None)


def fixed(value: float | None, places: int) -> str:
    """A number with so many decimals; a dash for None."""
    return "–" if value is None else f"{value:.{places}f}"


def over_seeds(values: Iterable[float], places: int = 3) -> str:
    """Mean ± deviation, or a dash."""
    mean, deviation = mean_and_deviation(values)
    return fixed(mean, places) + ("" if deviation is None else f" ± {deviation:.{places}f}")


def percent(value: float) -> str:
    """A percentage without decimals: 100 only if it is all, and 0 only if it is nothing."""
    near_end = 0 < value < 100 and round(value) in (0, 100)
    return f"{min(max(value, 0.1), 99.9):.1f}" if near_end else f"{value:.0f}"


def median_and_range(values: Iterable[float]) -> str:
    """Percentages as median (worst–best), the median alone if these look the same, or a dash."""
    numbers = list(values)
    if not numbers:
        return "–"
    worst, best = percent(min(numbers)), percent(max(numbers))
    return percent(median(numbers)) + (f" ({worst}–{best})" if worst != best else "")


def _mean_band(values: Sequence[float]) -> tuple[float, float, float]:
    mean, deviation = fmean(values), mean_and_deviation(values)[1] or 0.0
    return mean, mean - deviation, mean + deviation


def _median_band(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


@dataclass(frozen=True)
class Metric:
    """What a comparison measures at each length, and how seeds are summarised."""

    test: str
    """The key of a run's test, which also names the chart and its file."""
    key: str
    """The key of the value in a row of the test."""
    name: str
    title: str
    direction: str
    spread: str
    """What cells and bands show of several seeds."""
    band: Callable[[Sequence[float]], tuple[float, float, float]]
    """(middle, low, high) over seeds."""
    cell: Callable[[Iterable[float]], str]
    limits: tuple[float, float] | None = None
    """Of the chart's axis. None: fitted to the values."""
    unit: str = "tokens"
    """Of lengths."""
    length_axis: str = "sequence length in tokens"

    @property
    def is_accuracy(self) -> bool:
        """Whether the comparison is on a synthetic task."""
        return self.test == "accuracy"


LOG_PERPLEXITY = Metric(
    "perplexity", "log_perplexity", "log perplexity", "Perplexity", "lower is better", "mean and deviation", _mean_band,
    over_seeds,
)  # fmt: skip
EXACT_MATCH = Metric(
    "accuracy", "exact_match", "exact match in %", "Exact match", "higher is better", "median and range", _median_band,
    median_and_range, limits=(-3, 103),
)  # fmt: skip
TOKEN_ACCURACY = replace(EXACT_MATCH, key="token_accuracy", name="token accuracy in %")
