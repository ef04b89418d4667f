"""How peers compute and average: one round, one epoch of uneven peers, one peer that is killed."""

from drawings.canvas import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PURPLE, SMALL, TEAL, Drawing

PEERS = {"Ada": BLUE, "Ben": ORANGE, "Cleo": GREEN, "Dan": PURPLE}
CELL = 20


def round_of_averaging() -> Drawing:
    """Return how four peers average a gradient so that none sends it to all others."""
    drawing = Drawing(
        170,
        "Three tables of four peers and four parts. First each peer has its own gradient, cut into four parts. Then "
        "part one of all peers goes to Ada, part two to Ben, part three to Cleo and part four to Dan, each of whom "
        "averages one part. At the end every peer has the averages of all four parts.",
        "A round of four peers. Each averages one part for all, so each sends and receives about two gradients' worth "
        "of bytes, however many peers there are.",
    )
    for table, (x, title) in enumerate(((52, "own gradients"), (180, "one part each"), (308, "averages of all"))):
        drawing.text(x + 2 * CELL, 14, title, SMALL, anchor="middle", strong=True)
        for row, colour in enumerate(PEERS.values()):
            for part in range(4):
                left, top = x + part * CELL, 26 + row * (CELL + 8)
                if table == 0:
                    drawing.rect(left, top, CELL - 2, CELL, colour, soft=False)
                elif table == 2 or part == row:
                    _striped(drawing, left, top)
                else:
                    drawing.rect(left, top, CELL - 2, CELL, LINE)
    for row, name in enumerate(PEERS):
        drawing.text(44, 41 + row * (CELL + 8), name, SMALL, anchor="end")
    for x, words in ((136, "send"), (264, "return")):
        drawing.arrow(x + 2, 78, x + 40, 78)
        drawing.text(x + 20, 70, words, SMALL, MUTED, "middle")
    drawing.text(8, 158, "A colour is a peer's gradient; stripes are the average of all.", SMALL, MUTED)
    return drawing


def _striped(drawing: Drawing, x: float, y: float) -> None:
    """Add a cell with a stripe of each peer's colour."""
    for number, colour in enumerate(PEERS.values()):
        drawing.rect(x + number * (CELL - 2) / 4, y, (CELL - 2) / 4, CELL, colour, soft=False, round=0)


def uneven_epoch() -> Drawing:
    """Return an epoch of three peers of different speed."""
    drawing = Drawing(
        186,
        "Three peers compute batches of different length until together they have the samples of an epoch. The GPU "
        "has made seven batches, the laptop three and the old machine one and a half. Then all average at once, "
        "weighted by samples, and make the same step.",
        "One epoch of uneven peers. It ends when all of them together have enough samples, and each gradient counts by "
        "its samples. Nobody has to be as fast as anybody else.",
    )
    end = 288
    rows = (("GPU", BLUE, 7, "7 batches"), ("laptop", ORANGE, 3, "3 batches"), ("old PC", GREEN, 1, "1 batch"))
    for row, (name, colour, count, told) in enumerate(rows):
        top, width = 26 + row * 42, {7: 31.4, 3: 73.3, 1: 220}[count]
        drawing.text(58, top + 9, name, SMALL, anchor="end")
        drawing.text(58, top + 23, told, SMALL, MUTED, "end")
        for batch in range(count):
            drawing.rect(66 + batch * width, top, width - 3, 24, colour)
    drawing.line(end, 14, end, 150, INK, 1.5, "4 3")
    drawing.rect(end + 6, 26, 60, 108, PURPLE, round=6)
    drawing.lines(end + 36, 76, ["average", "by weight"], anchor="middle")
    drawing.rect(end + 70, 26, 34, 108, TEAL, round=6)
    drawing.text(end + 87, 84, "step", SMALL, anchor="middle")
    drawing.text(end, 166, "enough samples together", SMALL, MUTED, "middle")
    drawing.arrow(60, 178, 396, 178, MUTED, width=1)
    return drawing


def killed_peer() -> Drawing:
    """Return what happens to the others, and to itself, when a peer is killed in a round."""
    drawing = Drawing(
        256,
        "A timeline of three peers. In the second round Cleo is killed. Ada and Ben wait for her parts for a limited "
        "time, keep their own values for the parts that she should have averaged, and go on as two. Cleo starts again, "
        "begins with the newest state, waits without weight until her parameters are averaged with theirs, and then "
        "counts again.",
        "A peer is killed in a round. The others wait for a bounded time and go on; it comes back with the same "
        "command.",
    )
    lanes = {"Ada": (40, BLUE), "Ben": (86, ORANGE), "Cleo": (132, GREEN)}
    for name, (y, colour) in lanes.items():
        drawing.text(40, y + 18, name, SMALL, anchor="end")
        last = name == "Cleo"
        for start, stop in ((48, 96), (112, 160), *([] if last else [(200, 252), (268, 320), (336, 388)])):
            drawing.rect(start, y, stop - start, 28, colour)
    for x, wide, among in ((98, 12, 3), (162, 36, 2), (254, 12, 2), (322, 12, 3)):
        drawing.rect(x, 34, wide, 132 if among == 3 else 86, PURPLE, soft=False)
    drawing.cross(168, 146)
    drawing.rect(222, 132, 98, 28, LINE)
    drawing.text(271, 150, "waiting", SMALL, anchor="middle")
    drawing.rect(336, 132, 52, 28, GREEN)
    drawing.text(104, 24, "round", SMALL, MUTED, "middle")
    drawing.text(180, 24, "waits, in vain", SMALL, MUTED, "middle")
    drawing.text(260, 24, "two alone", SMALL, MUTED, "middle")
    drawing.text(336, 24, "three again", SMALL, MUTED, "middle")
    for number, (x, y) in enumerate(((168, 146), (222, 132), (336, 132)), start=1):
        _mark(drawing, x + (18 if number == 1 else 0), y, number)
    notes = (
        "Cleo is killed. Her parts keep each peer's own values.",
        "The same command again: newest state, no weight yet.",
        "Her parameters are averaged with theirs: she counts.",
    )
    for number, words in enumerate(notes, start=1):
        _mark(drawing, 14, 176 + number * 22, number)
        drawing.text(28, 180 + number * 22, words, SMALL)
    drawing.arrow(48, 176, 396, 176, MUTED, width=1)
    return drawing


def _mark(drawing: Drawing, x: float, y: float, number: int) -> None:
    """Add a number in a disc."""
    drawing.disc(x, y, 8)
    drawing.text(x, y + 4, str(number), SMALL, "var(--dalle-paper, Canvas)", "middle", strong=True)
