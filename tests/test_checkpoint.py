import json

import pytest
from conftest import same_weights
from full_disk import full_disk
from safetensors.torch import load_file, save_file
from small_models import ODD, SMALL

from dalle_lib.checkpoint import load_model, read_header, save_model
from dalle_lib.files import BrokenFile, is_disk_full
from dalle_lib.model import DALLE


def test_saved_weights_come_back_with_their_configuration(tmp_path):
    model = DALLE(ODD)
    save_model(tmp_path / "model.safetensors", model)
    loaded = load_model(tmp_path / "model.safetensors", ODD)
    assert same_weights(model, loaded)
    with pytest.raises(ValueError, match="another model"):
        load_model(tmp_path / "model.safetensors", SMALL)


def test_a_full_disk_is_told_as_such_and_leaves_the_old_file(tmp_path):
    model, file = DALLE(ODD), tmp_path / "model.safetensors"
    save_model(file, model, epoch=1)
    with full_disk(), pytest.raises(OSError, match=r"model\.safetensors") as refused:
        save_model(file, model, epoch=2)
    assert is_disk_full(refused.value)
    assert read_header(file)[1]["epoch"] == "1"
    assert list(tmp_path.iterdir()) == [file]


def test_a_model_goes_to_a_folder_of_the_hub_and_back(tmp_path):
    model = DALLE(ODD)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == ODD.__dict__
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    loaded = DALLE.from_pretrained(tmp_path)
    assert loaded.config == ODD
    assert same_weights(model, loaded)
    del stored["norm.bias"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match=r"norm\.bias"):
        DALLE.from_pretrained(tmp_path)


def test_a_header_that_no_model_has_is_not_read(tmp_path):
    header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(10**5)}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BrokenFile, match=r"a header of at most 4,194,304 bytes, but it has 6,"):
        read_header(tmp_path / "model.safetensors")
