"""The paper's claims, in its order: each a definition that turns records into a verdict."""

from longfire.report.claims import ablations, learned, perplexity, tasks, untrained
from longfire.report.claims.claim import Claim

GROUPS: dict[str, tuple[Claim, ...]] = {
    "Theorem": untrained.THEOREM,
    "Language modelling by length": perplexity.CLAIMS,
    "Downstream tasks": tasks.CLAIMS,
    "What FIRE learns": learned.CLAIMS,
    "Speed": untrained.SPEED,
    "Ablations and sharing": ablations.CLAIMS,
}
"""By what they are about."""
