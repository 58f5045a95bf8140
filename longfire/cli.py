"""The `longfire` command. Nothing heavy is imported until a command runs, so that --help answers at once."""

import argparse
import os
import sys
from collections.abc import Sequence

from longfire import __version__
from longfire.commands.bench import add_bench
from longfire.commands.compare import add_compare
from longfire.commands.downstream import add_finetune
from longfire.commands.evaluation import add_evaluate
from longfire.commands.explore import add_explore
from longfire.commands.generate import add_generate
from longfire.commands.interrupt import INTERRUPTED, Sigterm
from longfire.commands.parser import Parser
from longfire.commands.reproduce import add_reproduce
from longfire.commands.tokenize import add_tokenize
from longfire.commands.training import add_pretrain

OF_EXTRAS = {
    *("transformers", "huggingface_hub", "tokenizers", "lm_eval", "datasets", "filelock", "pyarrow", "zstandard"),
    *("accelerate", "matplotlib", "rouge_score", "tensorboard", "tqdm"),
}
"""Libraries that come with our extras."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    options = parser().parse_args(arguments)
    with Sigterm() as stop:
        return stop.status_of(carried_out(options))


def carried_out(options: argparse.Namespace) -> int:
    """A command; the exit status. What is wrong with what was asked for is said in a line."""
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"longfire: {explained(error, getattr(options, 'extra', 'lab'))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top: argparse.ArgumentParser = Parser(
        prog="longfire", description="Position encodings for transformers that are trained short and used long."
    )
    top.add_argument("--version", action="version", version=f"longfire {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        add_compare,
        add_pretrain,
        add_tokenize,
        add_finetune,
        add_evaluate,
        add_generate,
        add_explore,
        add_bench,
        add_reproduce,
    ):
        add(commands)
    return top


def explained(error: Exception, extra: str = "lab") -> str:
    """The message; where a library is missing, the one extra with all that the command needs."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        library = error.name.partition(".")[0]
        extra = "harness" if library == "lm_eval" else extra
        install = f"'longfire[{extra}]'" if library in OF_EXTRAS else library
        return f"this command needs {library}: pip install {install}"
    return str(error)
