"""The paper's claims, in its order: each a definition that turns records into a verdict."""

from longfire.report.claims import ablations, learned, perplexity, tasks, untrained
from longfire.report.claims.claim import Claim

GROUPS: dict[str, tuple[Claim, ...]] = {
    "Theorem and parameters": (*untrained.THEOREM, *perplexity.PARAMETERS),
    "Language modelling by length": perplexity.CLAIMS,
    "Downstream tasks": tasks.CLAIMS,
    "What FIRE learns": learned.CLAIMS,
    "Speed": untrained.SPEED,
    "Ablations and sharing": ablations.CLAIMS,
}
"""By what they are about."""
BEYOND: dict[str, tuple[Claim, ...]] = {"Beyond the paper": perplexity.BEYOND}
"""What it does not claim but leads one to expect, and what we claim: outside the counts."""
