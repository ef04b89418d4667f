"""What goes where: between a peer and the others, between GPU and RAM, from a picture to a batch, and who gets in."""

from making.figures import figure

from drawings.canvas import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PURPLE, RED, SMALL, TEAL, Drawing


def traffic() -> Drawing:
    """Return what one trainer sends and receives."""
    drawing = Drawing(
        312,
        "Your peer on the left, four others on the right. With the other trainers it exchanges gradients in every "
        "epoch and parameters every few epochs. To the hash table it sends small signed records. From the Hub it gets "
        "the run's card, a checkpoint to begin with, and codes to train on. The monitor reads the records and takes "
        "the run's state now and then.",
        "Who sends what. No pictures, no files of yours and no Hub token go to other peers.",
    )
    drawing.box(6, 10, 88, 292, BLUE, ["your peer", "computes", "gradients"])
    rows = (
        ("other trainers", ORANGE, "gradients, each epoch", "averages, each epoch"),
        ("hash table", TEAL, "signed records, small", "records of others"),
        ("the Hub", GREEN, "", "card, codes, checkpoint"),
        ("monitor", PURPLE, "records; its state, seldom", ""),
    )
    for row, (name, colour, sent, received) in enumerate(rows):
        y = 10 + row * 76
        drawing.box(286, y, 108, 64, colour, [name])
        if sent:
            drawing.text(190, y + 18, sent, SMALL, anchor="middle")
            drawing.arrow(98, y + 25, 282, y + 25)
        if received:
            drawing.text(190, y + 46, received, SMALL, anchor="middle")
            drawing.arrow(282, y + 53, 98, y + 53)
    return drawing


def offloading() -> Drawing:
    """Return what lies on the GPU and what in RAM while a peer trains."""
    drawing = Drawing(
        190,
        "Two boxes. The GPU holds the weights, the gradients and the activations. RAM holds the optimizer: its "
        "own copy of the weights, two statistics of one byte a parameter, and the buffers of averaging. Gradients go "
        "to RAM and new weights come back, once in an epoch.",
        "The optimizer and the averaging live in RAM. They are needed once an epoch, so a slow way between GPU and RAM "
        "costs little.",
    )
    drawing.text(8, 16, "GPU", strong=True)
    drawing.text(262, 16, "RAM", strong=True)
    for x, wide, colour, parts in (
        (8, 130, BLUE, ("weights", "gradients", "activations")),
        (252, 142, ORANGE, ("weights, 32 bits", "statistics, 2 × 8 bits", "gradients to average", "averages")),
    ):
        drawing.rect(x, 24, wide, 150, colour, round=6)
        for number, words in enumerate(parts):
            drawing.rect(x + 6, 32 + number * 34, wide - 12, 28, colour, round=4)
            drawing.text(x + wide / 2, 50 + number * 34, words, SMALL, anchor="middle")
    for y, words, ends in ((74, "gradients", (142, 248)), (128, "new weights", (248, 142))):
        drawing.text(195, y - 7, words, SMALL, anchor="middle")
        drawing.arrow(ends[0], y, ends[1], y)
    drawing.text(195, 150, "once an epoch", SMALL, MUTED, "middle")
    return drawing


def streaming() -> Drawing:
    """Return the way from a picture to a batch, with bytes."""
    drawing = Drawing(
        330,
        "From top to bottom: a picture of 256 by 256 pixels becomes 1,024 codes by the VQ-GAN, once, when the data set "
        "is made. Codes and captions are stored in groups of rows in a compressed Parquet file on the Hub. A peer "
        "downloads one group after the other, shuffles a window of groups, and takes batches from it.",
        "From a picture to a batch. Only codes travel; nobody downloads a picture to train.",
    )
    jpeg, codes = figure("jpeg"), figure("codes_of_photograph")
    steps = (
        (PURPLE, ["a picture, 256 × 256 pixels", f"{jpeg} as JPEG of quality 85"], "VQ-GAN, once, by the organiser"),
        (BLUE, ["1,024 codes of 8,192 kinds", f"{codes} in a column with Brotli"], "Parquet: groups of rows, hashed"),
        (GREEN, ["a data set on the Hub", "captions and codes, with a manifest"], "one group of rows after another"),
        (ORANGE, ["a shuffled window in RAM", f"{figure('stream_memory')} of RAM, measured"], "filters of the run"),
        (TEAL, ["a batch", "captions as text tokens, and codes"], ""),
    )
    for number, (colour, words, way) in enumerate(steps):
        y = 6 + number * 66
        drawing.box(40, y, 230, 44, colour, words)
        if way:
            drawing.arrow(155, y + 46, 155, y + 64)
            drawing.text(166, y + 59, way, SMALL, MUTED)
    return drawing


def members() -> Drawing:
    """Return how a volunteer becomes a member, and what happens to a stranger."""
    drawing = Drawing(
        280,
        "A volunteer shows the run's authority who they are: a link and a code, approved in the browser at the Hub. "
        "The authority signs an access token for the key of their peer. With it the peer signs an introduction before "
        "each round, and the other peers check it. A stranger without an access token is refused by every peer. A ban "
        "list that the authority signs reaches the peers within about a minute.",
        "Membership and introductions in a run for members. The access token is of no use to any other peer.",
    )
    drawing.box(6, 30, 96, 52, BLUE, ["your peer", "has its own key"])
    drawing.box(286, 30, 108, 52, PURPLE, ["authority", "of the run"])
    drawing.text(194, 38, "1  who I am, by the Hub", SMALL, anchor="middle")
    drawing.arrow(106, 46, 282, 46)
    drawing.text(194, 70, "2  signed access token", SMALL, anchor="middle")
    drawing.arrow(282, 78, 106, 78)
    drawing.box(130, 150, 140, 60, ORANGE, ["other trainers", "check every call"])
    drawing.arrow(96, 86, 166, 146)
    drawing.lines(6, 118, ["3  introduction,", "signed, in", "each round"])
    drawing.arrow(304, 86, 234, 146)
    drawing.lines(394, 118, ["ban list, signed,", "within a minute"], anchor="end")
    drawing.box(6, 222, 96, 44, LINE, ["a stranger"])
    drawing.line(106, 240, 134, 216, INK, 1.5)
    drawing.cross(136, 222, RED)
    drawing.text(152, 246, "refused: no records, no rounds, no state", SMALL, MUTED)
    return drawing
