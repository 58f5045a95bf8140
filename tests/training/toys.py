"""A toy task for fine-tuning (the answer is the question's first letter) and a checkpoint to start from."""

import json
import random

import torch

from longfire.model import LongfireConfig, LongfireForCausalLM
from longfire.training import FINETUNE_RECIPES, finetune
from longfire.training.callbacks import read_losses
from tests.model.checkpoints import byte_tokenizer

FIRST, OTHERS, ASK, END = (1, 2, 3, 4), (11, 12, 13), 30, 0
RECIPE = FINETUNE_RECIPES["tiny"].but(
    length=32, batch_size=16, steps=20, learning_rate=1e-2, evaluate_every=4, checkpoint_every=6, log_every=1
)


def checkpoint(folder, name="rope", **changes):
    """Save a new model, with large weights so that it learns fast, and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32}
    more = {"vocab_size": len(tokenizer), "initializer_range": 0.2, "eos_token_id": END, **changes}
    LongfireForCausalLM(LongfireConfig(position_encoding=name, **shape, **more)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rows(n, seed=0, shortest=3, longest=20):
    """n questions; the target is the answer and eos."""
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        first, more = draw.choice(FIRST), draw.randint(shortest, longest)
        prompt, target = [first, *(draw.choice(OTHERS) for _ in range(more)), ASK], [first, END]
        found.append({"input_ids": prompt + target, "labels": [-100] * len(prompt) + target})
    return found


def accuracy(model, step=0):
    """The fraction of questions that a model answers correctly."""
    count = 0
    for row in rows(40, seed=1):
        prompt = torch.tensor([row["input_ids"][:-2]])
        count += int(model(prompt).logits[0, -1].argmax()) == row["input_ids"][-2]
    return count / 40


def tune(source, run, *, score=accuracy, identity=None, questions=None, dev_rows=None, **changes):
    """`finetune` on the toy task, with changes to the recipe."""
    return finetune(
        RECIPE.but(**changes),
        source,
        rows(100) if questions is None else questions,
        run,
        tokenizer=byte_tokenizer(),
        identity={"task": "toy"} if identity is None else identity,
        score=score,
        dev_rows=dev_rows,
        tracker="none",
        progress=False,
    )


def scores(run):
    """The history of scores or losses, by step."""
    found = [(line["step"], line.get("score", line.get("loss"))) for line in read_losses(run / "scores.jsonl")]
    assert len(dict(found)) == len(found), "a step was recorded twice"
    return dict(found)


def done(run):
    return json.loads((run / "done.json").read_text())
