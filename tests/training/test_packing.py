"""Pretraining with attention within documents."""

from types import SimpleNamespace

import pytest
import torch

from longfire.model import LongfireForCausalLM
from longfire.training import RECIPES, pretrain
from longfire.training.pretrain import compiles_pretraining, training_sequences
from tests.training.runs import QUIET, RECIPE, losses

SEGMENTS = RECIPE.but(packing="segments", batch_size=8)


def test_documents_of_a_sequence_do_not_see_each_other(documents, tmp_path):
    pretrain(SEGMENTS, documents, tmp_path / "apart", **QUIET)
    pretrain(SEGMENTS.but(packing=None), documents, tmp_path / "together", **QUIET)
    assert losses(tmp_path / "apart") != losses(tmp_path / "together")
    model = LongfireForCausalLM.from_pretrained(tmp_path / "apart" / "model").eval()
    row = training_sequences(SEGMENTS, documents)[-2]
    ids, positions = row["input_ids"][None], row["position_ids"][None]
    last = int((positions[0] == 0).nonzero()[-1])
    assert last > 0
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits[:, last:]
        assert torch.allclose(packed, model(ids[:, last:]).logits, atol=1e-4)


def test_recipes():
    assert "packing" not in RECIPE.identity()
    assert SEGMENTS.identity()["packing"] == "segments"
    with pytest.raises(ValueError, match="packing cannot be 'stream'"):
        RECIPE.but(packing="stream")
    with pytest.raises(ValueError, match="omit it with random_positions"):
        RECIPE.but(packing="segments", random_positions=256)
    with pytest.raises(ValueError, match="omit it with the task copy"):
        RECIPES["task-tiny"].but(packing="segments")


def test_layers_are_not_compiled_by_default():
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    recipe = RECIPE.but(compile=None)
    assert compiles_pretraining(recipe, on_gpu)
    assert not compiles_pretraining(recipe.but(packing="segments"), on_gpu)
    assert compiles_pretraining(recipe.but(packing="segments", compile=True), on_gpu)
