import pytest

from longfire.data import HUB, CorpusError, HubEntry, load_corpus
from longfire.data.hub import HubDataset, find_dataset
from longfire.data.source import ReadLog
from tests.data.corpora import TEXTS, write

CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/train-*.jsonl.gz
  - split: validation
    path: en/validation.jsonl.gz
- config_name: de
  data_files:
  - split: train
    path: de/*.jsonl.gz
---
# A dataset
"""


@pytest.fixture
def folder(tmp_path):
    """A dataset in the hub's layout."""
    root = tmp_path / "owner" / "dataset"
    write(root / "en" / "train-0.jsonl.gz", TEXTS[:30])
    write(root / "en" / "train-1.jsonl.gz", TEXTS[30:50])
    write(root / "en" / "validation.jsonl.gz", TEXTS[50:])
    write(root / "de" / "train.jsonl.gz", ["eins", "zwei"], field="inhalt")
    (root / "README.md").write_text(CARD)
    return root


def read(hub, **options):
    return [text.decode() for text in hub.documents(ReadLog(**options))]


def test_splits_and_configurations(folder):
    assert read(find_dataset(f"{folder}:en", None)) == TEXTS[:50]
    assert read(find_dataset(f"{folder}:en@validation", None)) == TEXTS[50:]
    assert read(find_dataset(f"{folder}:de@train", "inhalt")) == ["eins", "zwei"]


def test_parquet_without_a_card(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00001.parquet", TEXTS)
    assert read(find_dataset(str(tmp_path), None)) == TEXTS


def test_a_corpus_with_the_dataset_s_own_validation(folder, tmp_path):
    given = {"validation": f"hub:{folder}:en@validation", "cache_dir": tmp_path / "cache", "progress": False}
    corpus = load_corpus(f"hub:{folder}:en", **given)
    sizes = {name: split["documents"] for name, split in corpus.describe()["splits"].items()}
    assert sizes["train"] + sizes["dev"] == 50
    assert sizes["validation"] == 10
    assert corpus.name == "dataset"
    assert not load_corpus(f"hub:{folder}:en", **given).built
    write(folder / "en" / "train-1.jsonl.gz", TEXTS[30:49])
    assert load_corpus(f"hub:{folder}:en", **given).built


def test_streams_only_what_is_needed(folder, tmp_path):
    (folder / "en" / "train-1.jsonl.gz").write_bytes(b"would fail")
    corpus = load_corpus(f"hub:{folder}:en", max_documents=20, cache_dir=tmp_path / "cache", progress=False)
    assert sum(split["documents"] for split in corpus.describe()["splits"].values()) == 20
    with pytest.raises(CorpusError, match="cannot be read"):
        load_corpus(f"hub:{folder}:en", cache_dir=tmp_path / "cache", progress=False)


def test_wrong_field_and_wrong_split(folder):
    with pytest.raises(CorpusError, match="row 1 has no field 'body'; its fields are: 'id', 'text'"):
        read(find_dataset(f"{folder}:en", "body"))
    with pytest.raises(CorpusError, match=r"@test cannot be read .*test"):
        read(find_dataset(f"{folder}:en@test", None))


def test_files_of_a_dataset_with_a_loading_script(tmp_path):
    write(tmp_path / "d" / "arxiv" / "train" / "0.jsonl.zst", TEXTS[:3])
    write(tmp_path / "d" / "arxiv" / "validation" / "0.jsonl.zst", TEXTS[3:])
    (tmp_path / "d" / "d.py").write_text("raise SystemExit")
    entry = HubEntry(str(tmp_path / "d"), files=HUB["arxiv"].files)
    assert read(HubDataset(entry, "arxiv")) == TEXTS[:3]
    assert read(HubDataset(HubEntry(entry.path, split="validation", files=entry.files), "arxiv")) == TEXTS[3:]


def test_short_names():
    assert set(HUB) == {"c4", "arxiv", "github", "github-validation"}
    assert all("untested" in entry.about for entry in HUB.values())
    c4 = find_dataset("c4@validation", None).entry
    assert (c4.path, c4.config, c4.split, c4.field) == ("allenai/c4", "en", "validation", "text")
    assert find_dataset("github", None).entry.field == "content"
    assert find_dataset("github", "path").entry.field == "path"
    assert find_dataset("allenai/c4:de", None).described == "hub:allenai/c4:de@train"


def test_unavailable_datasets(tmp_path):
    with pytest.raises(CorpusError, match=r"'arxvi' is neither OWNER/NAME nor a short name. Did you mean 'arxiv'"):
        find_dataset("arxvi", None)
    with pytest.raises(CorpusError, match="names no dataset"):
        find_dataset("", None)
    with pytest.raises(CorpusError, match=r"cannot load the dataset allenai/c4 from the Hugging Face hub .*Check name"):
        load_corpus("hub:c4", cache_dir=tmp_path, progress=False)


def test_offline_the_last_known_revision_is_used(caplog):
    class Memory(dict):
        recall = dict.get
        remember = dict.__setitem__

    hub = find_dataset("c4", None)
    assert hub.identity(Memory({"revision of hub:allenai/c4": "abc"}))[-1] == "abc"
    assert hub.revision == "abc"
    assert "last known revision" in caplog.text
