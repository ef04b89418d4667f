import pytest
import torch
from dense_dalle import sees
from small_models import ODD

from dalle_lib.model.cache import SlotTable


@pytest.mark.parametrize("kind", ["row", "column", "convolution"])
def test_the_slots_that_a_cell_sees_hold_the_codes_that_it_sees(kind):
    table, held = SlotTable(kind, ODD.grid, torch.device("cpu")), {}
    for cell in range(ODD.image_length):
        slot = table.at(torch.tensor([cell]))
        held[int(slot.slot)] = cell
        start = int(slot.line) * slot.is_hidden.shape[1]
        found = {held[start + int(place)] for place in (~slot.is_hidden[0]).nonzero()}
        query = ODD.text_part + cell
        assert found == {other for other in range(cell + 1) if sees(kind, ODD, query, ODD.text_part + other)}
