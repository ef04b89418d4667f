"""The paper's model: which layers share weights, and which codes a code sees."""

from dalle_lib.model.attention import REACH
from dalle_lib.model.config import BODY, ModelConfig
from drawings.canvas import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PURPLE, SMALL, TEAL, Drawing

SETS = (BLUE, ORANGE, GREEN, TEAL, PURPLE)
GRID, QUERY = 8, (4, 4)
"""The small grid on which masks are drawn, and the code that looks."""


def shared_layers() -> Drawing:
    """Return the paper's blocks, coloured by the set of weights that each uses."""
    paper = ModelConfig.paper()
    kinds = (*BODY, "convolution")
    order = ", ".join(kinds)
    drawing = Drawing(
        150,
        f"{paper.depth} blocks in a row, in {len(kinds)} colours. Blocks of the kinds {', '.join(BODY)} repeat with "
        f"the same four sets of weights; the last block, {kinds[-1]}, has its own.",
        f"The {paper.depth} blocks of the paper's model and their {len(kinds)} sets of weights: {order}. Peers send "
        f"and store {len(kinds)} blocks, and compute with {paper.depth}.",
    )
    wide = 388 / paper.depth
    for block, which in enumerate(paper.weight_sets):
        drawing.rect(6 + block * wide, 26, wide - 1.2, 50, SETS[which], soft=False, round=1)
    drawing.text(6, 16, "first block", SMALL, MUTED)
    drawing.text(394, 16, "last block", SMALL, MUTED, "end")
    for which, kind in enumerate(kinds):
        x = 6 + which * 76
        drawing.rect(x, 96, 12, 12, SETS[which], soft=False)
        drawing.text(x + 17, 106, kind, SMALL)
    drawing.text(6, 134, "Blocks of one colour are one set of weights, stored and sent once.", SMALL, MUTED)
    return drawing


def is_seen(kind: str, row: int, column: int) -> bool:
    """Return whether the code at QUERY sees the one at `row` and `column`, as dalle_lib.model.attention says."""
    up, left = QUERY[0] - row, QUERY[1] - column
    near = {"row": up == 0, "column": left == 0, "convolution": up <= REACH and abs(left) <= REACH}[kind]
    return near and row * GRID + column <= QUERY[0] * GRID + QUERY[1]


def masks() -> Drawing:
    """Return which codes one code sees in each kind of attention."""
    drawing = Drawing(
        170,
        f"Three grids of {GRID} by {GRID} codes. With row attention a code sees the codes to its left in its own row. "
        "With column attention it sees those above it in its own column. With convolutional attention it sees those "
        f"at most {REACH} rows above and {REACH} columns to either side that were drawn before it.",
        "What the code in the middle sees of those drawn before it (coloured). It also sees the whole caption. Most "
        "pairs of positions are never compared, which saves time and memory.",
    )
    cell = 14
    for number, (kind, colour) in enumerate((("row", BLUE), ("column", ORANGE), ("convolution", PURPLE))):
        x = 8 + number * 136
        drawing.text(x + GRID * cell / 2, 16, kind, SMALL, anchor="middle", strong=True)
        for row in range(GRID):
            for column in range(GRID):
                place = (x + column * cell, 26 + row * cell, cell - 1.5, cell - 1.5)
                if (row, column) == QUERY:
                    drawing.rect(*place, INK, soft=False)
                elif is_seen(kind, row, column):
                    drawing.rect(*place, colour, soft=False)
                else:
                    drawing.rect(*place, LINE)
    drawing.text(8, 160, "Codes are drawn from left to right, row after row.", SMALL, MUTED)
    return drawing
