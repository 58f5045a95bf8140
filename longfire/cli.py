"""The `longfire` command. Nothing heavy is imported until a command runs, so that --help answers at once."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from longfire import __version__
from longfire.commands.evaluation import add_perplexity
from longfire.commands.training import add_compare, add_pretrain

EXTRAS = {
    **dict.fromkeys(("transformers", "huggingface_hub", "tokenizers"), "longfire[model]"),
    "lm_eval": "longfire[harness]",
    **dict.fromkeys(
        ("matplotlib", "tqdm", "accelerate", "datasets", "zstandard", "pyarrow", "tensorboard", "filelock"),
        "longfire[lab]",
    ),
}
"""What to install for a library that is missing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"longfire: {explained(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="longfire", description="Position encodings for transformers that are trained short and used long."
    )
    top.add_argument("--version", action="version", version=f"longfire {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    explore = commands.add_parser(
        "explore",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        help="show what encodings do to attention, or what a checkpoint has learned",
        description="Without a checkpoint: print the bias of each encoding at a few distances and draw all of them for "
        "queries 128 and 8192. With one, or two to compare: write a page where the learned bias of each layer and head "
        "is drawn for a query position on a slider, from 1 to 16 times the training length.",
    )
    explore.add_argument(
        "checkpoints",
        type=Path,
        nargs="*",
        metavar="CHECKPOINT",
        default=argparse.SUPPRESS,
        help="folder that save_pretrained wrote, or of a training run",
    )
    explore.add_argument("--out", type=Path, default=Path("explore"), help="folder for what is written")
    explore.add_argument("--seed", type=int, default=0, help="of the random starting values, without a checkpoint")
    explore.set_defaults(run=run_explore)

    add_generate(commands)
    add_evaluate(commands)

    add_compare(commands)
    add_pretrain(commands)

    bench = commands.add_parser("bench", help="measure time and memory", description="Measure time and memory.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    add_bench_bias(subjects)
    add_bench_attention(subjects)
    add_bench_model(subjects)
    return top


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
    one.set_defaults(run=run_generate)


def add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire evaluate` and its forms."""
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate a checkpoint",
        description="Evaluate a checkpoint: longfire evaluate perplexity CHECKPOINT. --harness runs EleutherAI's "
        "lm-evaluation-harness, which then knows longfire's models: longfire evaluate --harness run --model hf "
        "--model_args pretrained=FOLDER,max_length=N --tasks NAME. Without max_length the harness cuts texts to the "
        "training length.",
    )
    evaluate.add_argument(
        "--harness",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="arguments of lm-eval, all that follow; with --help, its own help",
    )
    evaluate.set_defaults(run=run_evaluate)
    add_perplexity(evaluate.add_subparsers(title="subjects", metavar="SUBJECT"))


def add_bench_bias(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench bias` and its options."""
    bias = subjects.add_parser(
        "bias",
        help="making the bias of each encoding",
        description="Milliseconds and peak memory of making the bias of each encoding, on the CPU, without gradients.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    bias.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], metavar="N", help="tokens")
    bias.add_argument(
        "--encodings", nargs="+", metavar="NAME", default=argparse.SUPPRESS, help="all that have a bias, unless given"
    )
    add_common_options(bias, "bias", seconds=2.0)
    bias.set_defaults(run=run_bench_bias)


def add_bench_attention(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench attention` and its options. What is not given depends on the device."""
    one = subjects.add_parser(
        "attention",
        help="attention with each encoding on each engine",
        description="Milliseconds of attention forward and forward + backward, and the memory it adds, with each "
        "encoding on each engine and without a bias. An engine whose result is wrong is not timed, and the exit status "
        "is then 1. Ctrl-C keeps what was measured.",
    )
    one.add_argument("--device", choices=["cpu", "cuda"], help="the GPU if there is one, unless given")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="on cuda bfloat16, on cpu float32")
    one.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="tokens in a sequence: on cuda 2048 8192 32768, on cpu 512 2048",
    )
    one.add_argument(
        "--tokens", type=int, metavar="N", help="in all sequences together: on cuda 32768, on cpu one sequence"
    )
    one.add_argument("--engines", nargs="+", metavar="NAME", help="all, unless given")
    one.add_argument(
        "--encodings", nargs="+", metavar="NAME", help="all that have a bias, unless given; no bias is always measured"
    )
    one.add_argument(
        "--shared-layers", type=int, metavar="N", help="layers that share one FIRE: on cuda 12, on cpu 0 (left out)"
    )
    add_common_options(one, "attention", seconds=1.0)
    one.set_defaults(run=run_bench_attention)


def add_bench_model(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench model` and its options. What is not given depends on the device."""
    one = subjects.add_parser(
        "model",
        help="the whole model with each encoding",
        description="Forward of the whole model with every encoding; training and decoding with RoPE, FIRE and FIRE-S. "
        "Ctrl-C keeps what was measured.",
    )
    one.add_argument("--device", choices=["cpu", "cuda"], help="the GPU if there is one, unless given")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="on cuda bfloat16, on cpu float32")
    one.add_argument("--size", metavar="NAME", help="of the model: on cuda base, on cpu tiny")
    for kind, what in (("forward", "tokens"), ("training", "tokens"), ("decoding", "tokens in the cache")):
        one.add_argument(
            f"--{kind}", type=int, nargs="*", metavar="N", help=f"{what}, for {kind}; none to leave it out"
        )
    one.add_argument("--tokens", type=int, metavar="N", help="in all sequences together: on cuda 32768, on cpu 2048")
    one.add_argument("--encodings", nargs="+", metavar="NAME", help="in forward; all, unless given")
    one.add_argument("--compile", action=argparse.BooleanOptionalAction, help="on cuda, unless given")
    one.add_argument("--seconds", type=float, default=1.0, help="how long to repeat each measurement")
    one.add_argument("--out", type=Path, default=Path("bench/model.json"), help="JSON file to write")
    one.add_argument("--dry-run", action="store_true", help="print what would be measured, and measure nothing")
    one.set_defaults(run=run_bench_model)


def add_common_options(one: argparse.ArgumentParser, subject: str, seconds: float) -> None:
    """What every benchmark takes."""
    one.add_argument("--heads", type=int, default=12, help="attention heads")
    one.add_argument("--head-dim", type=int, default=64, help="head size")
    one.add_argument("--seconds", type=float, default=seconds, help="how long to repeat each measurement")
    one.add_argument("--out", type=Path, default=Path(f"bench/{subject}.json"), help="JSON file to write")
    one.add_argument("--dry-run", action="store_true", help="print what would be measured, and measure nothing")


def run_explore(options: argparse.Namespace) -> int:
    """`longfire explore`."""
    if checkpoints := getattr(options, "checkpoints", []):
        return explore_checkpoints(checkpoints, options.out)
    from longfire.report.explore import LEGEND, QUERIES, effects, effects_record, effects_table, plot_effects

    options.out.mkdir(parents=True, exist_ok=True)
    shown = {query: effects(query, options.seed) for query in QUERIES}
    for query, found in shown.items():
        print(effects_table(query, found), end="\n\n")
    print(LEGEND, end="\n\n")
    picture, record = options.out / "encodings.png", options.out / "encodings.json"
    record.write_text(json.dumps(effects_record(shown), indent=1) + "\n")
    plot_effects(shown, picture)
    print(f"All heads and all keys: {picture}   The numbers: {record}")
    return 0


def explore_checkpoints(checkpoints: Sequence[Path], out: Path) -> int:
    """`longfire explore CHECKPOINT [CHECKPOINT]`."""
    from longfire.report.explore_page import explore_page, explore_table

    page = out / "explore.html"
    print(explore_table(explore_page(checkpoints, page)), end="\n\n")
    print(f"To look at in a browser: {page}")
    return 0


def run_generate(options: argparse.Namespace) -> int:
    """`longfire generate`: 0, or 130 if it was interrupted."""
    from longfire.model.generate import Request, generate, load

    prompt = options.prompt
    if prompt is None:
        path = options.prompt_file
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        prompt = text.removesuffix("\n")
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "cache")
    request = Request(prompt, **{name: getattr(options, name) for name in names})
    model, tokenizer = load(options.checkpoint, options.tokenizer, options.device, options.dtype)
    report = generate(model, tokenizer, request, sys.stdout)
    print(report, file=sys.stderr)
    return 130 if report.interrupted else 0


def run_evaluate(options: argparse.Namespace) -> int:
    """`longfire evaluate`."""
    if options.harness is None:
        raise ValueError(
            "evaluate what? longfire evaluate perplexity CHECKPOINT, or longfire evaluate --harness run --model hf "
            "--model_args pretrained=FOLDER --tasks NAME; more with longfire evaluate --help."
        )
    from longfire.evaluation.harness import run_harness

    return run_harness(options.harness)


def run_bench_bias(options: argparse.Namespace) -> int:
    """`longfire bench bias`."""
    from longfire.evaluation.bias import BiasSetting, measure_bias
    from longfire.report.speed import speed_table

    encodings = tuple(options.encodings) if "encodings" in options else None
    setting = BiasSetting(tuple(options.lengths), options.heads, options.head_dim, options.seconds, encodings)
    if options.dry_run:
        cases = setting.cases()
        print(*(f"{name} n={n}" for n, name in cases), sep="\n")
        print(f"{len(cases)} measurements of bias, to be written to {options.out}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = measure_bias(setting)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{speed_table(record)}\n\nwritten to {options.out}")
    return 0


def run_bench_attention(options: argparse.Namespace) -> int:
    """`longfire bench attention`: 0, 1 if an engine was wrong or failed, 130 if it was interrupted."""
    from longfire.evaluation.speed import Setting, measure
    from longfire.report.speed import speed_table
    from longfire.report.speed_plot import plot_speed

    names = ("dtype", "tokens", "shared_layers", "heads", "head_dim", "seconds")
    lists = {name: tuple(getattr(options, name) or ()) or None for name in ("lengths", "engines", "encodings")}
    setting = Setting.on(options.device, **{name: getattr(options, name) for name in names}, **lists)
    if options.dry_run:
        cases = setting.cases()
        print(*(f"{case}, batch {setting.batch(case.n)}" for case in cases), sep="\n")
        print(
            f"{len(cases)} measurements of attention on {setting.device} in {setting.dtype}, "
            f"to be written to {options.out}"
        )
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def save(record: dict[str, object]) -> None:
        options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    record = measure(setting, save)
    picture = options.out.with_suffix(".png")
    print(f"{speed_table(record)}\n\nwritten to {options.out}", flush=True)
    plot_speed(record, picture)
    print(f"drawn in {picture}")
    if record.get("interrupted"):
        return 130
    return int(any("wrong" in row or "failed" in row for row in record["rows"]))


def run_bench_model(options: argparse.Namespace) -> int:
    """`longfire bench model`: 0, 1 if a measurement failed, 130 if it was interrupted."""
    from longfire.evaluation.model_speed import ModelSetting, measure_model
    from longfire.report.model_speed import model_table, plot_model

    names = ("dtype", "size", "tokens", "compile", "seconds")
    lists = {
        name: None if (given := getattr(options, name)) is None else tuple(given)
        for name in ("forward", "training", "decoding", "encodings")
    }
    setting = ModelSetting.on(options.device, **{name: getattr(options, name) for name in names}, **lists)
    if options.dry_run:
        cases = setting.cases()
        print(*(f"{case}, batch {setting.batch(case)}" for case in cases), sep="\n")
        print(
            f"{len(cases)} measurements of a {setting.size} model on {setting.device} in {setting.dtype}, "
            f"to be written to {options.out}"
        )
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def save(record: dict[str, object]) -> None:
        options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    record = measure_model(setting, save)
    picture = options.out.with_suffix(".png")
    print(f"{model_table(record)}\n\nwritten to {options.out}", flush=True)
    plot_model(record, picture)
    print(f"drawn in {picture}")
    if record.get("interrupted"):
        return 130
    return int(any("failed" in row for row in record["rows"]))


def explained(error: Exception) -> str:
    """The message, with what to install where a library is missing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        library = error.name.partition(".")[0]
        return f"this command needs {library}: pip install '{EXTRAS.get(library, library)}'"
    return str(error)
