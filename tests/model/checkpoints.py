"""A small checkpoint with a byte tokenizer."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.model.models import small_model

END = "<|end|>"


def byte_tokenizer():
    """Token 0 is eos; all others are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={END: 0} | {letter: 1 + i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def save_checkpoint(folder, name="fire", **changes):
    """Save a model and its tokenizer to a folder, and return both."""
    tokenizer = byte_tokenizer()
    model = small_model(name, **{"vocab_size": len(tokenizer), "eos_token_id": 0, **changes})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer
