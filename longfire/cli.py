"""The `longfire` command. Heavy imports wait until a command runs, so --help is instant."""

import argparse
import gc
import os
import shlex
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
from longfire.commands.report import add_report
from longfire.commands.reproduce import add_reproduce
from longfire.commands.retrofit import add_retrofit
from longfire.commands.tokenize import add_tokenize
from longfire.commands.training import add_pretrain

COMMANDS = (
    add_compare,
    add_pretrain,
    add_tokenize,
    add_finetune,
    add_retrofit,
    add_evaluate,
    add_generate,
    add_explore,
    add_report,
    add_bench,
    add_reproduce,
)
IN_EXTRAS = {
    *("transformers", "huggingface_hub", "tokenizers", "lm_eval", "datasets", "filelock", "pyarrow", "zstandard"),
    *("accelerate", "matplotlib", "rouge_score", "tensorboard", "tqdm"),
}
"""Libraries that longfire's extras install."""
BROKEN_PIPE = 141
"""Exit status when the output's reader is gone, as shells report SIGPIPE: the command may be unfinished."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status. Without a command, print the help."""
    options = parser().parse_args(arguments)
    if not hasattr(options, "run"):
        parser().print_help(sys.stderr)
        return 2
    gc.set_threshold(10_000)  # imports make many objects that stay: looking through them took an eighth of the start
    with Sigterm() as sigterm:
        status = run(options)
    if status == INTERRUPTED and getattr(options, "resumes", False) and "RANK" not in os.environ:
        command = shlex.join(["longfire", *(sys.argv[1:] if arguments is None else arguments)])
        print(f"longfire: to resume: {command}", file=sys.stderr)
    return sigterm.status_of(status)


def run(options: argparse.Namespace) -> int:
    """Run a command and return its exit status. User errors are reported in one line."""
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        silence_broken_pipes()
        return BROKEN_PIPE
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"longfire: {message(error, getattr(options, 'extra', 'lab'))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("longfire: stopped.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if type(error.__cause__) is ValueError and "StrictDataclass" in type(error).__name__:
            print(f"longfire: {error.__cause__}", file=sys.stderr)  # an invalid configuration, wrapped by transformers
            return 2
        raise
    return status


def silence_broken_pipes() -> None:
    """Discard buffered output, so that Python does not report a broken pipe at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    top: argparse.ArgumentParser = Parser(
        prog="longfire", description="Position encodings for transformers that train short and test long."
    )
    top.add_argument("--version", action="version", version=f"longfire {__version__}")
    commands = top.add_subparsers(
        title="commands", metavar="COMMAND"
    )  # not required: an unknown option is reported first
    for add in COMMANDS:
        add(commands)
    return top


def message(error: Exception, extra: str = "lab") -> str:
    """The error's message; for a missing library, how to install it."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        library = error.name.partition(".")[0]
        extra = "harness" if library == "lm_eval" else extra
        install = f"'longfire[{extra}]'" if library in IN_EXTRAS else library
        return f"this command needs {library}: pip install {install}"
    return str(error)
