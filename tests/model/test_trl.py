"""TRL's packing: fine-tuning on documents that share a row."""

import pytest
import torch

from longfire.model.attention import IMPLEMENTATIONS
from tests.model.models import small_model

trl = pytest.importorskip("trl", reason="needs TRL: pip install trl")
datasets = pytest.importorskip("datasets")


def fine_tuned(implementation, tmp_path, documents, **options):
    """The logged loss of one step."""
    from longfire.data.tokenizers import byte_tokenizer

    model = small_model(implementation=implementation, vocab_size=257).train()
    args = trl.SFTConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=1,
        max_length=24,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    data = datasets.Dataset.from_list([{"input_ids": document} for document in documents])
    trainer = trl.SFTTrainer(model=model, args=args, train_dataset=data, processing_class=byte_tokenizer())
    trainer.train()
    return next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_packed_rows_train_like_separate_ones(implementation, tmp_path):
    torch.manual_seed(0)
    documents = [torch.randint(0, 256, (n,)).tolist() for n in (5, 9, 7)]
    packed = fine_tuned(implementation, tmp_path, documents, packing=True)
    model = small_model(implementation=implementation, vocab_size=257)
    losses, tokens = 0.0, 0
    for document in documents:
        ids = torch.tensor([document])
        losses += model(ids, labels=ids).loss.item() * (len(document) - 1)
        tokens += len(document) - 1
    assert packed == pytest.approx(losses / tokens, rel=1e-3)
