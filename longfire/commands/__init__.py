"""The subcommands of `longfire`. They import heavy modules only when they run."""
