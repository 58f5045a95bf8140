"""`longfire generate`."""

import argparse
import sys
from pathlib import Path

from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import DTYPES, Commands


def add_generate(commands: Commands) -> None:
    """Add `longfire generate`."""
    parser = commands.add_parser(
        "generate",
        help="generate text from a checkpoint",
        description="Stream a model's continuation of a prompt to stdout, then report the speed on stderr. Ctrl-C "
        "stops generating.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="folder written by save_pretrained, with a tokenizer")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompts.add_argument("--prompt-file", metavar="PATH", help="file with the prompt; - for standard input")
    add("--tokenizer", type=Path, metavar="FOLDER", help="tokenizer (default: the checkpoint's)")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="maximum number of tokens to generate")
    add("--temperature", type=float, default=0.0, metavar="T", help="sampling temperature; 0 decodes greedily")
    add("--top-p", type=float, metavar="P", help="sample from the most likely tokens with total probability P")
    add("--top-k", type=int, metavar="K", help="sample from the K most likely tokens")
    add("--seed", type=int, metavar="N", help="random seed for sampling")
    add("--device", help="cpu, cuda, cuda:1, … (default: cuda if available)")
    add("--dtype", choices=DTYPES, help="dtype of the weights (default: as saved)")
    add(
        "--cache",
        choices=["dynamic", "static", "none"],
        default="dynamic",
        help="key-value cache; static compiles decoding on a GPU",
    )
    parser.set_defaults(run=run_generate, extra="model")


def run_generate(options: argparse.Namespace) -> int:
    """Run `longfire generate`. Exit status: 130 if interrupted."""
    from longfire.model.generate import GenerationSetting, generate, load_model

    prompt = read_prompt(options.prompt_file) if options.prompt is None else options.prompt
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "cache")
    setting = GenerationSetting(prompt, **{name: getattr(options, name) for name in names})
    model, tokenizer = load_model(options.checkpoint, options.tokenizer, options.device, options.dtype)
    report = generate(model, tokenizer, setting, sys.stdout)
    print(report, file=sys.stderr)
    return INTERRUPTED if report.interrupted else 0


def read_prompt(path: str) -> str:
    """The text of a file (-: standard input) without its final newline."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"cannot read {path} ({error.strerror}). Pass another --prompt-file PATH, or --prompt TEXT."
        ) from error
    return text.removesuffix("\n")
