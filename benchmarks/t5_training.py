"""Measure a training step of T5 on a GPU: retrofitted, against transformers' own eager and sdpa attention.

python -m benchmarks.t5_training results/bench/h200-t5-training.json
"""

import argparse
import gc
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

from longfire.atomic_io import write_json
from longfire.bench.timing import timed
from longfire.model import retrofit
from longfire.provenance import kernel_hash, provenance

LENGTHS, TOKENS, TARGETS = (2048, 8192), 16_384, 512
"""Input tokens of a row and of a step, and target tokens of a row."""
BASE: dict[str, Any] = {"decoder_start_token_id": 0, "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
TINY = {**BASE, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}
RETROFITTED = ("longfire", "longfire fire")
IMPLEMENTATIONS = ("eager", "sdpa", *RETROFITTED)


def main() -> None:
    """Time every implementation at every length, and record the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a tiny model at short lengths, to try it on a CPU")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, lengths, tokens, targets = (TINY, (64, 128), 256, 16) if arguments.tiny else (BASE, LENGTHS, TOKENS, TARGETS)
    rows = []
    for n in lengths:
        for implementation in IMPLEMENTATIONS:
            rows.append(measure(implementation, shape, n, tokens // n, targets, device))
            print(rows[-1], flush=True)
    setting = {
        "what": f"training step (forward, backward, AdamW) of T5 with {shape}, bfloat16, dropout 0.1, {tokens:,} input "
        f"tokens per step, {targets} target tokens per row, not compiled",
        "implementations": "eager and sdpa: transformers' own; longfire: retrofit(model); longfire fire: "
        "retrofit(model, 'fire', training_length=input tokens)",
    }
    write_json(
        arguments.out, {"provenance": {**provenance(), "kernels": kernel_hash()}, "setting": setting, "rows": rows}
    )


def measure(
    implementation: str, shape: dict[str, Any], n: int, batch: int, targets: int, device: str
) -> dict[str, Any]:
    """Milliseconds and peak memory of a step, and the loss before training, without dropout, to compare."""
    row: dict[str, Any] = {"implementation": implementation, "n": n, "batch": batch}
    try:
        row |= _measure(implementation, shape, n, batch, targets, device)
    except torch.OutOfMemoryError:
        row["out_of_memory"] = True
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return row


def _measure(
    implementation: str, shape: dict[str, Any], n: int, batch: int, targets: int, device: str
) -> dict[str, Any]:
    torch.manual_seed(0)
    own = "sdpa" if implementation in RETROFITTED else implementation
    with torch.device(device):
        model: Any = T5ForConditionalGeneration._from_config(T5Config(**shape), attn_implementation=own)
    model.to(torch.bfloat16)
    if implementation in RETROFITTED:
        encoding = implementation.removeprefix("longfire").strip() or None
        model = retrofit(model, encoding, training_length=n if encoding else None)
    generator = torch.Generator().manual_seed(0)
    ids, labels = (
        torch.randint(2, model.config.vocab_size, (batch, length), generator=generator).to(device)
        for length in (n, targets)
    )
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, labels=labels).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    del logits
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-5)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()

    step()  # warms up and makes the optimiser's state
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    row = {"loss": round(loss, 4), **timed(step, 1.0, device)}
    if device == "cuda":
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return row


if __name__ == "__main__":
    main()
