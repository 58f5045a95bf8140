"""Measure the peak GPU memory of fine-tuning the base model with FIRE at 8,192 tokens.

python -m benchmarks.finetune_memory results/bench/h200-finetune-memory.json
"""

import argparse
import tempfile
from pathlib import Path

import torch

from longfire.atomic_io import write_json
from longfire.data.tokenizers import byte_tokenizer
from longfire.model import LongfireConfig, LongfireForCausalLM
from longfire.provenance import kernel_hash, provenance
from longfire.training import FINETUNE_RECIPES, finetune

VOCABULARY, LENGTH, ROWS, STEPS = 50_304, 8192, 8, 3


def main() -> None:
    """Train a few steps on random rows and record the peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    fire = {"name": "fire", "init_L": LENGTH / 4}
    model = LongfireForCausalLM(LongfireConfig.of_size("base", vocab_size=VOCABULARY, position_encoding=fire))
    recipe = FINETUNE_RECIPES["scrolls"].but(
        batch_size=ROWS, steps=STEPS, max_tokens_per_device=ROWS * LENGTH, checkpoint_every=STEPS, evaluate_every=STEPS
    )
    tokens = torch.randint(0, VOCABULARY, (ROWS * STEPS, LENGTH))
    rows = [{"input_ids": row, "labels": row} for row in tokens.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.reset_peak_memory_stats()
        run = Path(folder) / "run"
        finetune(recipe, model, rows, run, tokenizer=byte_tokenizer(), identity={"rows": "random"}, tracker="none")
    setting = {
        "what": f"fine-tuning: base with FIRE (vocabulary {VOCABULARY:,}), {LENGTH:,} tokens, {ROWS} rows per pass, "
        f"dropout and attention dropout {recipe.dropout}, bfloat16, layers compiled",
        "steps": STEPS,
    }
    record = {
        "provenance": {**provenance(), "kernels": kernel_hash()},
        "setting": setting,
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2),
    }
    write_json(out, record)
    print(f"peak {record['peak_gb']} GB, reserved {record['reserved_gb']} GB")


if __name__ == "__main__":
    main()
