"""Run notebook 03 with GPT-2 Large on this machine's GPU, and keep its figures for the notebook to show.

`make tutorial-gpu` calls this. It needs a GPU of 16 GB or more, downloads 3.3 GB and some MB of C4, and writes the
executed notebook as a page. No process may take more than 15 GB of the GPU: a training that needs more is recorded as
one that did not fit, as it would be on a T4.
"""

import os
import shutil
import tempfile
from pathlib import Path

import torch
import tyro

from dalle_lib.dashboard.recorded import RECORD
from dalle_lib.notebook_run import execute
from dalle_lib.tutorial import choose_preset

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "03_gpt2_large_8bit_c4.ipynb"
CAP = 15 * 10**9
"""Bytes of the GPU's memory that a process may take."""


def run_and_keep(notebook: Path, preset: str, page: Path, record: Path) -> None:
    """Execute `notebook` with `preset`, write it to `page`, and copy the figures that it wrote to `record`."""
    source = notebook.read_text(encoding="utf-8")
    if 'PRESET = \\"auto\\"' not in source or 'OUT = \\"outputs/tutorial\\"' not in source:
        raise SystemExit(f'{notebook} must set PRESET = "auto" and OUT = "outputs/tutorial", to be run with {preset}.')
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / notebook.name
        copy.write_text(source.replace('PRESET = \\"auto\\"', f'PRESET = \\"{preset}\\"'), encoding="utf-8")
        execute(copy, page, Path(folder), lambda: None)
        shutil.copy(Path(folder) / "outputs" / "tutorial" / "run.json", record)


def main(page: Path = Path("outputs/tutorial_gpu.html")) -> None:
    """Run the notebook with GPT-2 Large, capped, and keep its record in the package."""
    try:
        choose_preset("gpt2-large")
    except ValueError as error:
        raise SystemExit(str(error)) from None
    share = min(1.0, CAP / torch.cuda.get_device_properties(0).total_memory)
    # The allocator of each process that the notebook starts reads this.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"per_process_memory_fraction:{share:.4f}"
    run_and_keep(NOTEBOOK, "gpt2-large", page, RECORD)
    print(f"recorded in {RECORD}; the executed notebook is {page}")


if __name__ == "__main__":
    tyro.cli(main)
