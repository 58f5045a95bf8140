"""`longfire generate`."""

import argparse
import sys
from pathlib import Path

from longfire.commands.interrupt import INTERRUPTED


def add_generate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire generate` and its options."""
    one = commands.add_parser(
        "generate",
        help="text from a checkpoint",
        description="Write what a model says after a prompt, as its tokens come; then, on stderr, how fast they came. "
        "Ctrl-C keeps what was written.",
    )
    one.add_argument("checkpoint", type=Path, help="folder that save_pretrained wrote, with a tokenizer")
    prompts = one.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="what to go on from")
    prompts.add_argument(
        "--prompt-file", metavar="PATH", help="a file with it, less the end of its last line; - is standard input"
    )
    one.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="the checkpoint's, unless given")
    one.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="128 unless given")
    one.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="draw tokens; unless given, take the most likely"
    )
    one.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the most likely that have P of the probability"
    )
    one.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely")
    one.add_argument("--seed", type=int, metavar="N", help="of the drawing; another each time, unless given")
    one.add_argument("--device", help="cpu, cuda, cuda:1, …; the GPU if there is one, unless given")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="as saved, unless given")
    one.add_argument(
        "--cache",
        choices=["dynamic", "static", "none"],
        default="dynamic",
        help="of keys and values: dynamic unless given; static compiles first on a GPU; none computes all anew",
    )
    one.set_defaults(run=run_generate, extra="model")


def run_generate(options: argparse.Namespace) -> int:
    """`longfire generate`: 0, or 130 if it was interrupted."""
    from longfire.model.generate import Request, generate, load

    prompt = written_in(options.prompt_file) if options.prompt is None else options.prompt
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "cache")
    request = Request(prompt, **{name: getattr(options, name) for name in names})
    model, tokenizer = load(options.checkpoint, options.tokenizer, options.device, options.dtype)
    report = generate(model, tokenizer, request, sys.stdout)
    print(report, file=sys.stderr)
    return INTERRUPTED if report.interrupted else 0


def written_in(path: str) -> str:
    """A file's text, or standard input's, less the end of its last line."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"the file {path} cannot be read ({error.strerror}). Give another: --prompt-file PATH, or --prompt TEXT"
        ) from error
    return text.removesuffix("\n")
