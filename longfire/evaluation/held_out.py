"""Held-out text, and how much of it a model was trained on after all."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longfire.atomic_io import read_json
from longfire.data import Corpus, TokenSplit
from longfire.data.corpus import trained_documents


def joined(corpus: Corpus) -> TokenSplit:
    """All splits of a corpus as one."""
    splits = [corpus.train, corpus.dev, corpus.validation]
    lengths = np.concatenate([np.diff(split.starts) for split in splits])
    return TokenSplit(
        name="whole",
        tokens=np.concatenate([split.tokens for split in splits]),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        bytes=sum(split.bytes for split in splits),
        end=corpus.validation.end,
        contents=corpus.contents,
    )


def require_tokenizer(corpus: Corpus, tokenizer: Any, owner: Path | str) -> None:
    """Refuse saved tokens of a different tokenizer than the owner's."""
    if corpus.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{corpus.folder} was tokenised with a different tokenizer than {owner}. Pass the text instead of tokens."
        )


def contamination(checkpoint: Path, corpus: Corpus, split: TokenSplit) -> dict[str, Any]:
    """For the record: how much of the split the model was trained on (`trained_on`), and a `note` if needed.

    `trained_on` is None if unknown. Empty for models that longfire did not train.
    """
    if not (training_corpus := read_json(checkpoint / "corpus.json")):
        return {}
    same_corpus = training_corpus["fingerprint"] == corpus.fingerprint
    seen = _seen_documents(checkpoint, corpus, split, same_corpus)
    origin = f"The model was trained on {training_corpus['source']}."
    if seen is None:
        note = (
            f"{origin} Whether it has seen this text is unknown. To score the text held out from training, pass the "
            "same --corpus and --validation."
        )
        return {"trained_on": None, "note": note}
    trained_on = {
        "documents": int(seen.sum()),
        "of_documents": split.num_documents,
        "tokens": int(np.diff(split.starts)[seen].sum()),
        "of_tokens": split.num_tokens,
    }
    note = ""
    if trained_on["documents"]:
        note = (
            f"The model was trained on {trained_on['documents']:,} of these {trained_on['of_documents']:,} documents "
            f"({trained_on['tokens'] / trained_on['of_tokens']:.1%} of the tokens). Expect a higher perplexity on "
            "unseen text."
        )
    elif not same_corpus:
        note = (
            f"{origin} This text contains none of those documents. Only whole documents are compared: excerpts, or the "
            "same text split differently, are not recognised."
        )
    return {"trained_on": trained_on, **({"note": note} if note else {})}


def _seen_documents(
    checkpoint: Path, corpus: Corpus, split: TokenSplit, same_corpus: bool
) -> npt.NDArray[np.bool_] | None:
    """Mask of the split's documents that the model was trained on; None if unknown.

    Decided by split on the training corpus, by content on other text.
    """
    trained = trained_documents(checkpoint)
    seen = np.zeros(split.num_documents, bool)
    if same_corpus:
        seen[: {"train": split.num_documents, "whole": corpus.train.num_documents}.get(split.name, 0)] = True
        if trained is None or corpus.train.contents is None:
            return seen
        trained = np.setdiff1d(trained, corpus.train.contents)  # seen in an earlier stage of training
    if trained is None or split.contents is None:
        return None
    return seen | np.isin(split.contents, trained)
