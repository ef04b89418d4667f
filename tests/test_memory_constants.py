"""The calculator uses the standard library only, so it restates constants of other code: they must stay equal."""

from dataclasses import asdict

import pytest
import torch

from dalle_lib.memory import PRESETS
from dalle_lib.memory import dalle as description
from dalle_lib.memory.estimate import EIGHT_BIT_FROM
from dalle_lib.memory.presets import FAMILIES, describe
from dalle_lib.memory.training import BLOCK, LAMB_CHUNK, PAGED_FROM, QUANTISED_FROM
from dalle_lib.model import DALLE, ModelConfig, attention, config
from dalle_lib.model.attention import WholeRows
from dalle_lib.optimizer import blockwise, lamb
from dalle_lib.run import RunCard

ODD = ModelConfig(dim=20, depth=7, heads=3, dim_head=14, text_length=5, text_vocab=11, image_vocab=13, grid=6)


def described(sizes: ModelConfig):
    return describe({"model_type": "dalle", **asdict(sizes)})


def test_presets_of_this_kits_model_have_its_sizes():
    assert {name: getattr(describe("dalle-paper").config, name) for name in asdict(ODD)} == asdict(ModelConfig.paper())
    assert PRESETS["dalle-emoji"] == {"model_type": "dalle", **asdict(ModelConfig.emoji())}


def test_attention_of_this_kits_model_has_the_same_kinds_strips_and_reach():
    assert description.BODY == config.BODY
    assert description.STRIP == attention.STRIP
    assert description.REACH == attention.REACH


@pytest.mark.parametrize("grid", [2, 3, 8, 12, 31, 32, 67])
def test_strips_of_this_kits_model_hold_the_same_codes_and_keys(grid):
    sizes = ModelConfig(**asdict(ODD) | {"grid": grid})
    for kind in set(sizes.kinds):
        view = WholeRows(kind, sizes, grid, torch.device("cpu"))
        strips, near = described(sizes).strips(kind)
        assert strips == grid**2 // view.strip, kind
        assert near == view.strip + view.above, kind


@pytest.mark.parametrize("sizes", [ODD, ModelConfig.paper(), ModelConfig.emoji()])
def test_layers_of_this_kits_model_share_the_same_weights(sizes):
    symbolic = described(sizes)
    assert symbolic.kinds == sizes.kinds
    numbers = {id(qkv): number for number, qkv in enumerate({id(b.qkv): b.qkv for b in symbolic.blocks}.values())}
    in_order = [numbers[id(block.qkv)] for block in symbolic.blocks]
    assert in_order == list(sizes.weight_sets)


@pytest.mark.parametrize("sizes", [ODD, ModelConfig.emoji()])
def test_tables_of_this_kits_model_have_the_same_bytes(sizes):
    assert described(sizes).table_bytes == sum(buffer.nbytes for buffer in DALLE(sizes).buffers())


def test_8_bit_statistics_of_lamb_have_its_threshold_blocks_and_chunks():
    assert QUANTISED_FROM["lamb8bit"] == lamb.QUANTISED_FROM
    assert BLOCK["lamb8bit"] == blockwise.BLOCK
    assert LAMB_CHUNK == lamb._CHUNK


def test_8_bit_statistics_of_bitsandbytes_have_its_threshold_and_blocks():
    import bitsandbytes as bnb

    def statistics(count: int) -> dict:
        parameter = torch.nn.Parameter(torch.ones(count))
        parameter.grad = torch.ones(count)
        optimizer = bnb.optim.AdamW8bit([parameter])
        optimizer.step()
        return optimizer.state[parameter]

    threshold, blocks = QUANTISED_FROM["adamw8bit"], 35
    assert statistics(threshold - 1)["state1"].dtype == torch.float32
    assert statistics(threshold)["state1"].dtype == torch.uint8
    assert len(statistics(blocks * BLOCK["adamw8bit"])["absmax1"]) == blocks


def test_paged_statistics_of_bitsandbytes_begin_at_its_threshold():
    import bitsandbytes as bnb

    optimizer = bnb.optim.PagedAdamW([torch.nn.Parameter(torch.ones(3))])
    device = "cuda" if torch.cuda.is_available() else "meta"

    def is_paged(count: int) -> bool:
        try:
            return hasattr(optimizer.get_state_buffer(torch.empty(count, device=device)), "is_paged")
        except RuntimeError as error:  # only paged memory needs the library of CUDA
            return "cget_managed_ptr" in str(error)

    assert not is_paged(PAGED_FROM - 1)
    assert is_paged(PAGED_FROM)


def test_a_peer_sends_tensors_in_8_bits_from_the_same_size_on():
    assert RunCard.load("emoji").averaging.eight_bit_from == EIGHT_BIT_FROM
    assert type(RunCard.load("emoji").averaging).model_fields["eight_bit_from"].default == EIGHT_BIT_FROM


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"dalle"}))
def test_a_config_that_leaves_a_field_out_gets_the_default_of_transformers(family):
    from transformers import CONFIG_MAPPING

    real, described = CONFIG_MAPPING[family](), FAMILIES[family]
    defaults = {name: value for name, value in (described.defaults | described.fixed).items() if hasattr(real, name)}
    derived = {name for name, value in defaults.items() if value is None}  # computed from the other sizes
    assert len(defaults) > 5
    assert {name: getattr(real, name) for name in defaults if name not in derived} == {
        name: value for name, value in defaults.items() if name not in derived
    }
