"""What strangers put on the Hub and send to organisers, and what fails while organisers work: nothing is lost by it."""

import json
import time
from dataclasses import asdict

import pytest

from dalle_lib.organizing.checking import check_run
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES
from dalle_lib.run.parts import MAX_PROBLEMS

HF_TOKEN = "hf_madeUpForThisTest"


def test_a_card_of_any_size_is_not_fetched(hub):
    hub.add("mallory/huge", {"run.json": b"{}" + b" " * MAX_CARD_BYTES})
    hub.add("mallory/none", {"README.md": b"hi"})
    with pytest.raises(ValueError, match=r"at most 1,048,576 bytes, but mallory/huge has 1,048,578 bytes"):
        RunCard.load("mallory/huge")
    with pytest.raises(ValueError, match=r"mallory/none on the Hub has no run\.json, so it is no run"):
        RunCard.load("mallory/none")
    assert not hub.requests("GET /mallory/huge/resolve"), "it was fetched"


@pytest.mark.parametrize("wrong", [{"initial_peers": [0] * 300_000}, {f"x{i}": 0 for i in range(50_000)}])
def test_a_card_of_many_mistakes_is_refused_at_once_and_in_few_words(mini, tmp_path, wrong):
    (tmp_path / "run.json").write_text(json.dumps(json.loads(mini.as_text()) | wrong, separators=(",", ":")))
    began = time.process_time()
    with pytest.raises(ValueError, match="no valid run card") as refused:
        RunCard.load(tmp_path)
    assert time.process_time() - began < 1
    assert len(str(refused.value)) < 1000 + 100 * MAX_PROBLEMS


def test_a_model_beyond_all_sizes_is_refused_in_few_words(mini):
    sizes = {"dim": 2**20, "depth": 4096, "heads": 2**20, "dim_head": 2**20, "text_vocab": 2**20}
    with pytest.raises(ValueError, match="elements of each tensor") as refused:
        check_run(mini.with_changes(model=asdict(mini.model) | sizes))
    assert len(str(refused.value)) < 1000
