"""Bootstrap confidence intervals of a mean (Hesterberg, What Teachers Should Know about the Bootstrap, 2015).

The resampled units are documents, or sequences if documents are unknown, because tokens within a document are
dependent. Plain percentiles are too narrow for few units; Hesterberg's expanded percentiles widen them like Student's
t.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

RESAMPLES = (1000, 4000)
"""Minimum and maximum; few units need more, for the tails."""
DRAWS = 1 << 23
"""Target number of drawn units over all resamples."""
CONFIDENCE = 0.95
FEW = 9
"""With fewer units, use Student's t on the units' residuals instead of resampling."""
T_QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""At 97.5 %, by the number of units."""
CHUNK = 1 << 20
"""Draws in memory at a time."""


def mean_interval(
    sums: npt.NDArray[np.float64], counts: npt.NDArray[np.float64], seed: int = 0
) -> tuple[float, float] | None:
    """The 95 % interval of Σ sums / Σ counts over units; None for fewer than two units.

    Args:
        sums: (K,), the sum of each unit's losses.
        counts: (K,), each unit's tokens.
        seed: seed of the resamples.
    """
    K = len(sums)
    if K < 2:
        return None
    if K < FEW:
        mean = sums.sum() / counts.sum()
        error = (K / (K - 1) * np.square(sums - mean * counts).sum()) ** 0.5 / counts.sum()
        return float(mean - T_QUANTILES[K] * error), float(mean + T_QUANTILES[K] * error)
    (means,) = resampled_means([sums], counts, seed)
    return _percentiles(means, K)


def geometric_interval(
    sums: Sequence[npt.NDArray[np.float64]], counts: npt.NDArray[np.float64], seed: int = 0
) -> tuple[float, float] | None:
    """The 95 % interval of the geometric mean of several means, resampling their units together.

    None for fewer than two units, and for few units if a mean is 0, where the geometric mean cannot be linearised.

    Args:
        sums: for each mean, (K,), as in `mean_interval`.
        counts: (K,).
        seed: seed of the resamples.
    """
    K, P = len(counts), len(sums)
    if P == 1:
        return mean_interval(sums[0], counts, seed)
    if K < 2:
        return None
    if K >= FEW:
        return _percentiles(geometric_mean(np.stack(resampled_means(sums, counts, seed))), K)
    means = np.array([part.sum() / counts.sum() for part in sums])
    if means.min() <= 0:
        return None
    center = geometric_mean(means)
    slopes = [(part - mean * counts) / mean for part, mean in zip(sums, means, strict=True)]
    units = center * counts + center / P * np.sum(slopes, axis=0)  # linearised: the sums of a single mean
    return mean_interval(units, counts, seed)


def geometric_mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Geometric mean of non-negative numbers over the first axis. Equal numbers have exactly that mean."""
    largest = values.max(0)
    shares = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    return np.asarray(largest * np.prod(shares, axis=0) ** (1 / len(values)))


def resampled_means(
    sums: Sequence[npt.NDArray[np.float64]], counts: npt.NDArray[np.float64], seed: int
) -> list[npt.NDArray[np.float64]]:
    """Σ sums / Σ counts of each, in many resamples with replacement that all sums share."""
    K = len(counts)
    random = np.random.default_rng(seed)
    resamples = min(max(DRAWS // K, RESAMPLES[0]), RESAMPLES[1])
    rows = max(1, CHUNK // K)
    means: list[list[npt.NDArray[np.float64]]] = [[] for _ in sums]
    for start in range(0, resamples, rows):
        drawn = random.integers(K, size=(min(rows, resamples - start), K))
        for chunks, part in zip(means, sums, strict=True):
            chunks.append(part[drawn].sum(1) / counts[drawn].sum(1))
    return [np.concatenate(chunks) for chunks in means]


def _percentiles(values: npt.NDArray[np.float64], K: int) -> tuple[float, float]:
    tail = expanded_tail(K)
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def by_unit(
    values: npt.NDArray[np.float64], units: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The sum (K,) and the number (K,) of each unit's values (M,)."""
    _, index = np.unique(units, return_inverse=True)
    sums: npt.NDArray[np.float64] = np.bincount(index, weights=values).astype(np.float64)
    return sums, np.bincount(index).astype(np.float64)


def expanded_tail(K: int) -> float:
    """The share of resampled means beyond each end: Φ(−√(K / (K − 1)) · t), with Student's t quantile."""
    normal = NormalDist()
    return normal.cdf(-((K / (K - 1)) ** 0.5) * t_quantile(normal.inv_cdf((1 + CONFIDENCE) / 2), K - 1))


def t_quantile(z: float, freedom: int) -> float:
    """Student's t quantile for a normal quantile z, by Cornish-Fisher: within 1 % for 3 or more degrees of freedom."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, start=1)))
