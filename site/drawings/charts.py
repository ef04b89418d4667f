"""Measured figures as bars, read from the results of the benchmarks."""

from collections.abc import Mapping, Sequence

from making.figures import figure, measured, row_of

from drawings.canvas import BLUE, LINE, MUTED, ORANGE, SMALL, Drawing

KIT, OTHER = BLUE, ORANGE
Bar = tuple[str, float, str, str]
"""What it is, its value, the value in words, its colour."""


def bars(told: Sequence[Bar], about: str, caption: str) -> Drawing:
    """Return horizontal bars from 0, each below its name, with its value at its end; the alt text tells all of them."""
    largest = max(value for _, value, _, _ in told)
    values = "; ".join(f"{name}: {words}" for name, _, words, _ in told)
    drawing = Drawing(len(told) * 42, f"{about} {values}.", caption)
    for number, (name, value, words, colour) in enumerate(told):
        y, wide = number * 42, max(2.0, 300 * value / largest)
        drawing.text(2, y + 13, name, SMALL)
        drawing.rect(2, y + 18, wide, 16, colour, soft=False)
        drawing.text(wide + 8, y + 30, words, SMALL, MUTED)
    return drawing


def first_batch() -> Drawing:
    """Return the seconds to the first batch over a slow link, for the kit and for `datasets`."""
    told = [
        ("this kit", measured("first_batch_seconds"), figure("first_batch_seconds"), KIT),
        ("datasets, tuned", measured("first_batch_tuned"), figure("first_batch_tuned"), OTHER),
        ("datasets, as it comes", measured("first_batch_datasets"), figure("first_batch_datasets"), OTHER),
    ]
    return bars(
        told,
        "Seconds to the first batch over 10 Mbit/s.",
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
        "By how much the loss is higher when three rounds of ten fail for all peers.",
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
        "Memory above the start of a training step.",
        "Memory that one training step of the yardstick adds: the paper's model made narrower, with 16 blocks.",
    )


def epochs_as_planned() -> Drawing:
    """Return the seconds of an epoch of eight peers on three kinds of links, as measured."""
    names = {
        "epoch_equal": "eight equal peers", "epoch_two_slow_uplinks": "two of them with slow uplinks",
        "epoch_clients": "six clients of two reducers",
    }  # fmt: skip
    told = [(name, measured(epoch), figure(epoch), KIT) for epoch, name in names.items()]
    return bars(
        told,
        "Seconds of an epoch of eight peers, twelve seconds of which are computing.",
        "Seconds of an epoch of eight peers, twelve seconds of which are computing. Slow links do not stop the run.",
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
        "Bytes that a peer sends for each sample.",
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

    def y_of(loss: float) -> float:
        return foot - (loss - low) / max(high - low, 1e-9) * (foot - top)

    for loss in (low, (low + high) / 2, high):
        y = y_of(loss)
        drawing.line(left, y, 396, y, LINE, 1)
        drawing.text(left - 6, y + 4, f"{loss:.1f}", SMALL, MUTED, "end")
    wide = (396 - left) / max(last - first, 1)
    places = [(left + (epoch - first) * wide, y_of(loss)) for epoch, loss in told]
    drawing.path(places, BLUE)
    drawing.text(left, 194, f"epoch {first:,.0f}", SMALL, MUTED)
    drawing.text(396, 194, f"epoch {last:,.0f}", SMALL, MUTED, "end")
    return drawing
