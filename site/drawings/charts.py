"""Measured figures as bars, read from the results of the benchmarks."""

from collections.abc import Mapping, Sequence

from making.figures import figure, measured, row_of

from drawings.canvas import BLUE, LINE, MUTED, ORANGE, SMALL, Drawing

KIT, OTHER = BLUE, ORANGE
Bar = tuple[str, float, str, str]
"""What it is, its value, the value in words, its colour."""


def bars(told: Sequence[Bar], alt: str, caption: str, begins: float = 0) -> Drawing:
    """Return horizontal bars, each below its name, with its value at its end; they start at the value `begins`."""
    largest = max(value for _, value, _, _ in told) - begins
    drawing = Drawing(len(told) * 42, alt, caption)
    for number, (name, value, words, colour) in enumerate(told):
        y, wide = number * 42, max(2.0, 300 * (value - begins) / largest)
        drawing.text(2, y + 13, name, SMALL)
        drawing.rect(2, y + 18, wide, 16, colour, soft=False)
        drawing.text(wide + 8, y + 30, words, SMALL, MUTED)
    return drawing


def _told(told: Sequence[Bar]) -> str:
    return "; ".join(f"{name}: {words}" for name, _, words, _ in told)


def first_batch() -> Drawing:
    """Return the seconds to the first batch over a slow link, for the kit and for `datasets`."""
    told = [
        ("this kit", measured("first_batch_seconds"), figure("first_batch_seconds"), KIT),
        ("datasets, tuned", measured("first_batch_tuned"), figure("first_batch_tuned"), OTHER),
        ("datasets, as it comes", measured("first_batch_datasets"), figure("first_batch_datasets"), OTHER),
    ]
    return bars(
        told,
        f"Seconds to the first batch over 10 Mbit/s. {_told(told)}.",
        "Seconds to the first batch over a link of 10 Mbit/s.",
    )


def failed_rounds() -> Drawing:
    """Return by how much the loss rises where rounds fail, for each answer of a peer."""
    answers = (
        ("applies its own gradient (this kit)", "local", KIT),
        ("applies zero, as hivemind 1.1.12", "zero", OTHER),
        ("keeps its gradient for the next round", "keep", OTHER),
    )
    told = [(name, measured(f"rise_{kind}"), figure(f"rise_{kind}"), colour) for name, kind, colour in answers]
    return bars(
        told,
        f"By how much the loss is higher when three rounds of ten fail for all peers. {_told(told)}.",
        "By how much the loss is higher, in nats, when 30% of all rounds fail for everybody, by what a peer then does.",
    )


def reversible_memory() -> Drawing:
    """Return the memory of a training step with reversible layers, with kept activations, and of dalle-pytorch."""
    kit, plain = row_of("reversible"), row_of("activations kept (`is_reversible = False`)")
    told = [
        ("reversible layers (this kit)", float(kit[4].split()[0]), kit[4], KIT),
        ("activations kept", float(plain[4].split()[0]), plain[4], OTHER),
    ]
    return bars(
        told,
        f"Memory above the start of a training step. {_told(told)}.",
        "Memory that one training step of the yardstick adds: the paper's model made narrower, with 16 blocks.",
    )


def epochs_as_planned() -> Drawing:
    """Return the seconds of an epoch of eight peers on four kinds of links, measured and planned."""
    names = {
        "equal": "eight equal peers", "two slow uplinks": "two of them with slow uplinks",
        "clients": "six clients of two reducers",
    }  # fmt: skip
    told = []
    for scenario, name in names.items():
        seconds = measured("epoch_" + scenario.replace(" ", "_"))
        told.append((name, seconds, figure("epoch_" + scenario.replace(" ", "_")), KIT))
    return bars(
        told,
        f"Seconds of an epoch of eight peers, of which twelve are computing. {_told(told)}.",
        "Seconds of an epoch of eight peers, of which twelve are computing. Slow links cost seconds, not the run.",
    )


def communication_loss() -> Drawing:
    """Return the bytes a sample with averaged gradients and with local updates."""
    every, local = row_of("wait for everything, epochs of 192 samples"), row_of('`strategy="local"`, epochs of 768')
    told = [
        (f"average every 192 samples: loss {every[1]}", float(every[2].replace(",", "")), f"{every[2]} bytes", OTHER),
        (f"local updates, every 768: loss {local[1]}", float(local[2].replace(",", "")), f"{local[2]} bytes", KIT),
    ]
    return bars(
        told,
        f"Bytes that a peer sends for each sample. {_told(told)}.",
        "Bytes that a peer sends for each sample, and the image loss after equally many samples.",
    )


def objective(epochs: Mapping[str, Sequence[float | None]]) -> Drawing:
    """Return the loss of a run over its epochs, of the table `epochs` of its monitor's history."""
    told = [(epoch, loss) for epoch, loss in zip(epochs["epoch"], epochs["loss"], strict=True) if loss is not None]
    (first, begun), (last, ended) = told[0], told[-1]
    low, high = min(loss for _, loss in told), max(loss for _, loss in told)
    left, top, foot = 40, 14, 176
    drawing = Drawing(
        200,
        f"A curve of the training loss of a recorded run: {begun:.2f} nats at epoch {first:,.0f}, and {ended:.2f} at "
        f"epoch {last:,.0f}.",
        "The training loss of a recorded run, in nats.",
    )
    for loss in (low, (low + high) / 2, high):
        y = foot - (loss - low) / max(high - low, 1e-9) * (foot - top)
        drawing.line(left, y, 396, y, LINE, 1)
        drawing.text(left - 6, y + 4, f"{loss:.1f}", SMALL, MUTED, "end")
    places = [
        (
            left + (epoch - first) / max(last - first, 1) * (396 - left),
            foot - (loss - low) / max(high - low, 1e-9) * (foot - top),
        )
        for epoch, loss in told
    ]
    drawing.path(places, BLUE)
    drawing.text(left, 194, f"epoch {first:,.0f}", SMALL, MUTED)
    drawing.text(396, 194, f"epoch {last:,.0f}", SMALL, MUTED, "end")
    return drawing
