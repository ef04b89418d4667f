import torch
from conftest import DATA
from safetensors.torch import load_file
from small_models import ODD

from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.rotary import rotary_angles


def test_half_precision_keeps_its_angles():
    exact, half = DALLE(ODD), DALLE(ODD).half().float()
    assert torch.equal(exact.transformer.rotary(torch.float32), half.transformer.rotary(torch.float32))


def test_angles_of_the_paper_are_exact():
    golden = load_file(DATA / "dalle_paper_pos_emb.safetensors")
    angles = rotary_angles(ModelConfig.paper()).repeat_interleave(2, dim=1)
    assert torch.equal(angles[golden["rows"]], golden["pos_emb_rows"])
    assert (angles.double().sum(1) - golden["row_sums_float64"]).abs().max() < 1e-9
