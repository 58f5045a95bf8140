"""Held-out text in a model's tokens, and how much of it the model was trained on after all."""

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
    """Refuse tokens made with a tokenizer that is not the owner's: they mean nothing to its model."""
    if corpus.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{corpus.folder} was tokenized with a different tokenizer than that of {owner}. Give the text itself."
        )


def contamination(checkpoint: Path, corpus: Corpus, split: TokenSplit) -> dict[str, Any]:
    """For a record: `trained_on`, documents and tokens of the split the model was trained on, and a `note` if needed.

    `trained_on` is None where that is unknown. Empty for models that were not trained by longfire.
    """
    if not (trained := read_json(checkpoint / "corpus.json")):
        return {}
    same_corpus = trained["fingerprint"] == corpus.fingerprint
    seen = _seen_documents(checkpoint, corpus, split, same_corpus)
    if seen is None:
        return {"trained_on": None, "note": f"{_ORIGIN.format(trained['source'])} {_UNKNOWN}"}
    trained_on = {
        "documents": int(seen.sum()),
        "of_documents": split.num_documents,
        "tokens": int(np.diff(split.starts)[seen].sum()),
        "of_tokens": split.num_tokens,
    }
    if trained_on["documents"]:
        note = (
            f"The model was trained on {trained_on['documents']:,} of these {trained_on['of_documents']:,} documents "
            f"({trained_on['tokens'] / trained_on['of_tokens']:.1%} of the tokens). Expect a higher perplexity on "
            "unseen text."
        )
    else:
        note = "" if same_corpus else f"{_ORIGIN.format(trained['source'])} {_NONE}"
    return {"trained_on": trained_on, **({"note": note} if note else {})}


_ORIGIN = "The model was trained on {}."
_UNKNOWN = (
    "Whether it has seen this text is unknown. To score the text held out from training, give the same --corpus and "
    "--validation."
)
_NONE = (
    "None of those documents is in this text, but only whole documents are compared: excerpts, or the same text "
    "divided differently, are not recognised."
)


def _seen_documents(
    checkpoint: Path, corpus: Corpus, split: TokenSplit, same_corpus: bool
) -> npt.NDArray[np.bool_] | None:
    """Which documents of a split the model was trained on; None if unknown.

    On the training corpus the split decides, on other text the content.
    """
    known = trained_documents(checkpoint)
    seen = np.zeros(split.num_documents, bool)
    if same_corpus:
        seen[: {"train": split.num_documents, "whole": corpus.train.num_documents}.get(split.name, 0)] = True
        if known is None or corpus.train.contents is None:
            return seen
        known = np.setdiff1d(known, corpus.train.contents)  # what an earlier stage of training has seen
    if known is None or split.contents is None:
        return None
    return seen | np.isin(split.contents, known)
