"""Text sources → documents → token sequences of one length.

`load_corpus` reads text, divides it by document into train, dev and validation, and tokenises it once: the tokens are
kept memory-mapped in a cache.
"""

from longfire.data.corpus import Corpus, is_saved, load_corpus
from longfire.data.hub import HUB, HubEntry
from longfire.data.intake import CorpusError
from longfire.data.token_split import Sequences, TokenSplit

__all__ = ["HUB", "Corpus", "CorpusError", "HubEntry", "Sequences", "TokenSplit", "is_saved", "load_corpus"]
