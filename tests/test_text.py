"""Streams of text: order, resuming, errors, and the embedded text and model."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfFileSystem

from dalle_lib.streaming import TEXT, TEXT_MODEL, stream_text
from dalle_lib.streaming.text import TextStream

WORST_LOSS = 5.6
"""Largest loss of the embedded model on text of another subject, in nats per text token; it was 5.43 when made."""


class LetterTokenizer:
    """A tokenizer with one id for each letter, called as those of transformers are."""

    eos_token_id = 0

    def __call__(self, text: str, **_) -> dict:
        return {"input_ids": [ord(letter) for letter in text]}


def write_records(file: Path, records: list[dict]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))


@pytest.fixture
def source(tmp_path):
    texts = ["ab" * i + str(i) for i in range(23)]
    texts[7] = ""
    for shard in range(3):
        records = [{"text": text, "timestamp": "2020-01-01T00:00:00Z", "url": "u"} for text in texts[shard::3]]
        write_records(tmp_path / f"en/c4-train.{shard:05}-of-00003.json.gz", records)
    return tmp_path


def reference(source: Path, length: int) -> list[list[int]]:
    """Return the blocks of all shards read at once, each text with an end token."""
    ids = []
    for file in sorted(source.glob("en/c4-train.*")):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            ids += [*map(ord, json.loads(line)["text"]), 0]
    return [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TEXT_MODEL)


def test_a_stream_works_beside_file_systems_of_another_hub(source, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        HfFileSystem(token="hf_other")
    assert next(stream_text(source, LetterTokenizer(), length=2)).shape == (2,)


@pytest.mark.parametrize("length", [1, 2, 7, 50])
def test_blocks_are_all_texts_joined_and_cut(source, length):
    blocks = [block.tolist() for block in stream_text(source, LetterTokenizer(), length=length)]
    assert blocks == reference(source, length)


def test_a_resumed_stream_gives_exactly_the_rest_from_any_place(source):
    stream = stream_text(source, LetterTokenizer(), length=11)
    whole = reference(source, 11)
    for seen in range(len(whole) + 1):
        state = json.loads(json.dumps(stream.state_dict()))
        resumed = stream_text(source, LetterTokenizer(), length=11)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [block.tolist() for block in resumed] == whole[seen:]
        next(stream, None)


def test_loading_a_state_also_goes_back(source):
    stream = stream_text(source, LetterTokenizer(), length=11)
    next(stream)
    state = stream.state_dict()
    rest = [block.tolist() for block in stream]
    assert next(stream, None) is None
    stream.load_state_dict(state)
    assert [block.tolist() for block in stream] == rest
    assert stream.documents == 23


def test_the_order_is_the_same_each_time(tokenizer):
    first, second = ([next(stream_text(TEXT, tokenizer, length=64)) for _ in range(3)] for _ in range(2))
    assert torch.equal(torch.stack(first), torch.stack(second))


def test_looking_at_records_does_not_move_the_stream(source):
    stream = stream_text(source, LetterTokenizer(), length=11)
    first = next(stream)
    records = stream.records()
    assert set(next(records)) == {"text", "timestamp", "url"}
    assert len(list(records)) == 22
    assert [block.tolist() for block in [first, *stream]] == reference(source, 11)


def test_batches_hold_every_block_once(source):
    batches = list(stream_text(source, LetterTokenizer(), length=11).batches(5))
    assert [batch.shape for batch in batches[:-1]] == [(5, 11)] * (len(batches) - 1)
    assert torch.cat(batches).tolist() == reference(source, 11)


def test_damaged_records_are_skipped_and_counted(tmp_path):
    records = [{"text": text} for text in ("ab", None, "cd", 5, ["ef"], "gh")]
    write_records(tmp_path / "en/c4-train.00000-of-00001.json.gz", records)
    stream = stream_text(tmp_path, LetterTokenizer(), length=3)
    assert ["".join(map(chr, block)) for block in stream] == ["ab\0", "cd\0", "gh\0"]
    assert (stream.documents, stream.skipped) == (3, 3)


def test_errors_say_what_to_do(source, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"no folder .*missing.* use the embedded text"):
        stream_text(tmp_path / "missing", LetterTokenizer())
    with pytest.raises(ValueError, match=r"found en/c4-train: choose another split"):
        stream_text(source, LetterTokenizer(), split="validation")
    with pytest.raises(ValueError, match="at least 1 text token, but got length 0"):
        stream_text(source, LetterTokenizer(), length=0)
    with pytest.raises(ValueError, match="at least 1 block, but got 0"):
        next(stream_text(source, LetterTokenizer()).batches(0))
    with pytest.raises(ValueError, match=r"set tokenizer\.eos_token"):
        stream_text(source, lambda text, **_: {"input_ids": []})
    with pytest.raises(ValueError, match=r"lacks .*documents"):
        stream_text(source, LetterTokenizer()).load_state_dict({"records": None})


def test_data_without_texts_is_refused(tmp_path):
    file = tmp_path / "en/c4-train.00000-of-00001.json.gz"
    write_records(file, [{"caption": "a"}])
    with pytest.raises(ValueError, match=r"but they have \['caption'\]"):
        next(stream_text(tmp_path, LetterTokenizer()))
    write_records(file, [{"text": 3}, {"text": 4}])
    with pytest.raises(ValueError, match="found none: 2 records"):
        next(stream_text(tmp_path, LetterTokenizer()))


def test_a_hub_that_does_not_answer_is_named(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(ValueError, match=r"allenai/c4.* check the name and the network.*no route"):
        stream_text("allenai/c4", LetterTokenizer())


def test_a_data_set_of_the_hub_is_asked_for_as_a_stream(monkeypatch):
    from datasets import Dataset

    asked = {}

    def answer(name, config, **settings):
        asked.update(settings, name=name, config=config)
        return Dataset.from_dict({"text": ["abc", "de"]}).to_iterable_dataset()

    monkeypatch.setattr("datasets.load_dataset", answer)
    stream = stream_text("allenai/c4", LetterTokenizer(), length=7)
    assert isinstance(stream, TextStream)
    assert "".join(map(chr, next(stream))) == "abc\0de\0"
    assert asked == {"name": "allenai/c4", "config": "en", "split": "train", "streaming": True}


def test_importing_it_does_not_import_datasets():
    code = "import sys, dalle_lib.streaming; sys.exit(bool({'datasets', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_embedded_shards_are_c4s():
    splits = {"train": set(), "validation": set()}
    for file in sorted(TEXT.glob("en/c4-*.json.gz")):
        data = file.read_bytes()
        assert data[4:8] == bytes(4), "a time in the file makes each build differ"
        for line in gzip.decompress(data).splitlines():
            record = json.loads(line)
            assert list(record) == ["text", "timestamp", "url"]
            assert len(record["text"]) >= 300
            splits[file.name.split(".")[0].removeprefix("c4-")].add(record["url"])
    assert len(list(TEXT.glob("en/c4-train.*"))) == 4
    assert all(splits.values())
    assert not splits["train"] & splits["validation"]


def test_embedded_text_is_small():
    assert sum(file.stat().st_size for file in TEXT.rglob("*") if file.is_file()) <= 8 * 2**20


def test_embedded_model_knows_english_but_not_this_subject(tokenizer):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TEXT_MODEL)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.config.vocab_size == len(tokenizer)
    blocks = torch.stack(list(stream_text(TEXT, tokenizer, length=256, split="validation")))[::4]
    with torch.no_grad():
        logits = model(blocks).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten())
    assert loss < WORST_LOSS < math.log(len(tokenizer)) - 2


def test_embedded_tokenizer_gives_texts_back(tokenizer):
    for text in "The module", " ünïcode\n\n£ €", "x = {1: 'a'}":
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
