"""Small corpora in every supported file format."""

import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard

from longfire.data import TokenSplit
from longfire.data.files import find_files
from longfire.data.source import ReadLog

TEXTS = [f"Document {n}: " + " ".join(f"word{n * k}" for k in range(40)) + "\n" for n in range(60)]


def lines(texts=TEXTS, field="text"):
    return "".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(texts)).encode()


def write(path, texts=TEXTS, field="text"):
    """Write a file in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pyarrow.table({"id": list(range(len(texts))), field: texts})
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".txt":
        path.write_bytes("".join(texts).encode())
    else:
        pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(lines(texts, field)))
    return path


def read(source, field="text", **options):
    """The documents of files, and what was skipped."""
    log = ReadLog(**options)
    return [text.decode() for text in find_files(source, field).documents(log)], log


def texts_of(split):
    """The documents of a byte-tokenised split."""
    documents = np.split(np.asarray(split.tokens), split.starts[1:-1])
    assert all(document[-1] == 256 for document in documents)
    return [document[:-1].astype(np.uint8).tobytes().decode() for document in documents]


def split_of(lengths, end=0):
    """A split in memory with all tokens different, so that each can be identified."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenSplit("train", np.arange(1, starts[-1] + 1, dtype=np.uint32), starts, int(starts[-1]), end)
