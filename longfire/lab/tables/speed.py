"""Figure 5: the time of a forward pass with each encoding."""

from longfire.lab.entry import SpeedEntry

ENTRY = SpeedEntry(
    "speed", "Figure 5", "time of a forward pass with each encoding", size="base", length=2048, tokens=32768
)
