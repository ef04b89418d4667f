"""The record of notebook 03 on a GPU: what a run writes, what the notebook shows, and the script that keeps it."""

import json

import pytest
from checkout import ROOT, load_script

from dalle_lib.dashboard.recorded import recorded_run, write_record
from dalle_lib.measurement import Measurement
from dalle_lib.memory import Training

MEASURED = Measurement(
    training=Training(batch=2, sequence=50), device="cpu", predicted=99 * 10**6, available=10**9, peak=10**8,
    seconds=0.5, losses=[2.0],
)  # fmt: skip
tutorial_gpu = load_script("scripts/tutorial_gpu")


def test_without_a_record_the_notebook_says_how_to_make_one(tmp_path):
    assert "make tutorial-gpu" in recorded_run(tmp_path / "none.json").data


def test_a_record_is_shown_with_memory_beside_its_prediction_speed_and_losses(tmp_path):
    large = Measurement(training=Training(sequence=50), device="cpu", predicted=9, available=1, error="out of memory")
    file = tmp_path / "new" / "run.json"
    write_record(file, "gpt2-large", {"plain": MEASURED, "large": large}, {0: 3.5, 30: 3.25, 60: 3.0})
    shown = recorded_run(file).data
    for text in ("gpt2-large on cpu", "99.0 MB", "100 MB", "-1.00%", "<td>200</td>", "out of memory"):
        assert text in shown, text
    assert "3.50 before, 3.00 after" in shown


def test_the_script_runs_the_notebook_with_its_preset_and_keeps_its_record(tmp_path):
    cells = [
        'PRESET = "auto"  # @param\nOUT = "outputs/tutorial"',
        "from pathlib import Path\nPath(OUT).mkdir(parents=True)\nPath(OUT, 'run.json').write_text(PRESET)",
    ]
    notebook, page, record = (tmp_path / name for name in ("small.ipynb", "small.html", "kept.json"))
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [cell | {"id": f"cell-{n}", "source": source} for n, source in enumerate(cells)]
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    tutorial_gpu.run_and_keep(notebook, "gpt2-large", page, record)
    assert record.read_text() == "gpt2-large"
    assert page.exists()
    settings = (ROOT / "notebooks" / "03_gpt2_large_8bit_c4.ipynb").read_text()
    assert all(text in settings for text in ('PRESET = \\"auto\\"', 'OUT = \\"outputs/tutorial\\"'))


def test_without_a_gpu_the_script_ends_with_one_line(monkeypatch):
    monkeypatch.setattr(tutorial_gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="there is no GPU here"):
        tutorial_gpu.main()
