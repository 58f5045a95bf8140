"""Text → documents → tokens on disk → training sequences of one length.

`load_corpus` reads text, divides its documents into train, dev and validation, and caches their tokens, memory-mapped.
"""

from longfire.data.corpus import Corpus, is_saved, load_corpus
from longfire.data.hub import HUB, HubEntry
from longfire.data.source import CorpusError
from longfire.data.token_split import Sequences, TokenSplit

__all__ = ["HUB", "Corpus", "CorpusError", "HubEntry", "Sequences", "TokenSplit", "is_saved", "load_corpus"]
