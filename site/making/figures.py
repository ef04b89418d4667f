"""Measured figures that pages name: each is read from the file that holds it, whenever the site is built.

A page writes `{{ first_batch_seconds }}` for a figure, and includes `_made/measured/streaming.md` for a benchmark's row
with its command and its machine.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from making import gallery
from making.repository import ROOT, address_of

RESULTS, EMOJI = "benchmarks/results/", "docs/emoji/table.json"
TABLES = ("benchmarks/README.md", "docs/averaging.md", "docs/threats.md", "README.md")
"""Where `row_of` looks."""


@dataclass(frozen=True)
class Figure:
    """A number in a JSON file, and how a page writes it."""

    file: str
    """From the repository's root."""
    keys: tuple[str, ...]
    form: str
    times: float = 1


def _of(script: str, form: str, *keys: str, times: float = 1) -> Figure:
    return Figure(f"{RESULTS}{script}.json", keys, form, times)


def _right(kind: str, which: str, measure: str) -> Figure:
    return Figure(EMOJI, ("right", kind, which, measure), "{:.0f}")


KINDS = {"seen": "seen", "background": "unseen background", "colour": "unseen colour", "both": "doubly unseen"}
SLOW = "seconds, 10 Mbit/s"
FIGURES = {
    "first_batch_seconds": _of("streaming", "{:.1f} s", "figure", SLOW),
    "first_batch_tuned": _of("streaming", "{:.1f} s", "reference", SLOW),
    "first_batch_datasets": _of("streaming", "{:.1f} s", "first", "datasets", SLOW),
    "stream_memory": _of("streaming", "{:.0f} MB", "figure", "memory"),
    "stream_waits": _of("streaming", "{:.1%}", "trainer", "0.5 samples a second", "share"),
    "rows_lost": _of("streaming", "{:,}", "resume", "kit", "lost"),
    "rows_lost_datasets": _of("streaming", "{:,}", "resume", "datasets", "lost"),
    "rows_repeated_datasets": _of("streaming", "{:,}", "resume", "datasets", "repeated"),
    "jpeg": _of("storage", "{:.1f} kB", "JPEG", "85", times=1e-3),
    "codes_of_photograph": _of("storage", "{:.0f} bytes", "figure", "photographs, 8192 codes of 256x256 pixels"),
    "rise_local": _of("failed_round", "{:.3f}", "figure", "all, 30%, local", "rise"),
    "rise_zero": _of("failed_round", "{:.3f}", "figure", "all, 30%, zero", "rise"),
    "rise_keep": _of("failed_round", "{:.3f}", "figure", "all, 30%, keep", "rise"),
    "epoch_equal": _of("plan", "{:.1f} s", "figure", "equal"),
    "epoch_two_slow_uplinks": _of("plan", "{:.1f} s", "figure", "two slow uplinks"),
    "epoch_clients": _of("plan", "{:.1f} s", "figure", "clients"),
    "newcomers": _of("newcomers", "{:.0f}", "settings", "newcomers"),
    "newcomers_longer": _of("newcomers", "{:.2f}", "figure"),
    "newcomers_wait": _of("newcomers", "{:.0f}", "epochs after the download"),
    "swarm_loss": _of("swarm_vs_single", "{:.3f}", "figure", "synchronous"),
    "single_loss": _of("swarm_vs_single", "{:.3f}", "reference"),
    "gpu_reversible": _of("paper_gpu", "{:.1f} GB", "train", "bf16, reversible, batch 1", "allocated", times=1e-9),
    "gpu_kept": _of("paper_gpu", "{:.1f} GB", "train", "bf16, kept, batch 1", "allocated", times=1e-9),
    "vqgan_decibels": Figure(EMOJI, ("decibels",), "{:.1f} dB"),
    "captions_each": Figure(EMOJI, ("right", "seen", "captions"), "{:.0f}"),
} | {
    f"{measure}_{name}": _right(kind, "first", measure)
    for name, kind in KINDS.items()
    for measure in ("strict", "nearest")
}
FIGURES |= {f"best_{name}": _right(kind, "best of 32", "strict") for name, kind in KINDS.items()}


@cache
def _file(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def measured(name: str) -> float:
    """Return a figure as its file has it. Raises KeyError if it is none of FIGURES, or its file has it no more."""
    figure = FIGURES[name]
    value = _file(figure.file)
    for key in figure.keys:
        value = value[key]
    return value


def figure(name: str) -> str:
    """Return a figure as pages write it, with its unit."""
    return FIGURES[name].form.format(measured(name) * FIGURES[name].times)


def substitutions() -> dict[str, str]:
    """Return all figures by the name by which pages ask, for MyST."""
    return (
        {name: figure(name) for name in FIGURES}
        | gallery.substitutions()
        | {
            "gpu_memory": first_half("GPU memory, RAM (one sample at a time)"),
            "sent_each_update": first_half("sent, and received, for each update of all peers together"),
        }
    )


def first_half(first: str) -> str:
    """Return what the one row that begins with `first` says, up to the semicolon."""
    return row_of(first)[1].partition(";")[0]


def row_of(first: str) -> list[str]:
    """Return the cells of the one row, of the tables in TABLES, whose first cell is `first`."""
    rows = [cells for name in TABLES for cells in rows_of((ROOT / name).read_text(encoding="utf-8"))]
    (found,) = [cells for cells in rows if cells[0] == first] or [None]
    if found is None:
        raise KeyError(f"expected a row that begins with {first!r} in {', '.join(TABLES)}, but there is none.")
    return found


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all rows of the tables in a text."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def make(made: Path) -> None:
    """Write each benchmark's row, with its command and machine, as a page may include it."""
    folder = made / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    machines = dict(re.findall(r"^- ([A-Z]): ((?:.|\n  )*)", text, re.MULTILINE))
    for cells in rows_of(text.partition("\n- A: ")[0]):
        script = cells[0].strip("`")
        if (ROOT / "benchmarks" / f"{script}.py").exists():
            (folder / f"{script}.md").write_text(_told(script, cells, machines), encoding="utf-8")


def _told(script: str, cells: list[str], machines: dict[str, str]) -> str:
    """Return a benchmark's row in sentences: the figure, what it is compared with, the command and the machine."""
    figures, reference = (_without_links(cell) for cell in cells[1:3])
    machine = _without_links(" ".join(machines[cells[4]].split()).rstrip("."))
    address = address_of(ROOT / "benchmarks" / f"{script}.py")
    return (
        f":::{{div}} measured\n**Measured:** {figures}. **Compared with:** {reference}.\n\n"
        f"By [`python benchmarks/{script}.py`]({address}), on {machine}.\n:::\n"
    )


def _without_links(words: str) -> str:
    """Return a cell without links, which lead from another page, and without what stands in brackets for them."""
    words = re.sub(r" ?\(\[[^\]]*\]\([^)]*\)\)|; the next sections say more|\. `codec`, .*", "", words)
    words = re.sub(r"; (?:more figures are |kept )?in (?:\[[^\]]*\]\([^)]*\) and )?`results/`(?: too)?", "", words)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words).strip(" ;,")
