"""What the kit finds out about the machine on which it runs, and what it says when the machine does not suffice."""

import dataclasses
import json
import sys
import time
import types
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from nbclient import NotebookClient
from torch.utils._python_dispatch import TorchDispatchMode

from dalle_lib import machine, platforms
from dalle_lib.checks.preflight import preflight
from dalle_lib.checks.report import LOG_LINES, problem_report
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.watching import watch
from dalle_lib.inference import TextToImage
from dalle_lib.machine import NotEnoughRoom, autocast_dtype, choose_device
from dalle_lib.platforms import Platform, this_platform, typed
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer, PeerFailed, PeerSettings
from dalle_lib.swarm.peer.workplace import Workplace

SECRET = "hf_" + "Q" * 34


@pytest.mark.parametrize(("share", "free"), [(1.0, 60 + 5), (0.5, 20 + 5), (0.2, 5)])
def test_free_memory_of_a_gpu_is_no_more_than_the_share_of_this_process(monkeypatch, share, free):
    told = {"memory_reserved": 30, "memory_allocated": 25, "mem_get_info": (60, 100)}
    for name, value in (told | {"get_per_process_memory_fraction": share}).items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert machine.free_memory("cuda:0") == free


@pytest.mark.parametrize(
    ("environ", "name", "is_unattended"),
    [
        ({}, "your own machine", False),
        ({"COLAB_RELEASE_TAG": "release-colab-external-images"}, "Colab", False),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "Kaggle", False),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "Kaggle", True),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Batch", "COLAB_RELEASE_TAG": "its image is made from Colab's"}, "Kaggle", True),
    ],
)
def test_platforms_are_known_by_what_they_set(environ, name, is_unattended):
    platform = this_platform(environ)
    assert (platform.name, platform.is_unattended) == (name, is_unattended)
    assert (platform.minutes_left() is None) == (name == "your own machine")


def test_a_command_is_told_as_it_can_be_typed(monkeypatch, tmp_path):
    environment = tmp_path / ".venv" / "bin"
    environment.mkdir(parents=True)
    monkeypatch.setattr("sys.executable", str(environment / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert typed() == ".venv/bin/python -m dalle_lib"
    (environment / "dalle-lib").touch(mode=0o755)
    assert typed() == ".venv/bin/dalle-lib"
    monkeypatch.chdir(environment)
    assert typed() == str(environment / "dalle-lib")
    monkeypatch.chdir("/")
    assert typed().endswith("/.venv/bin/dalle-lib")
    monkeypatch.setenv("PATH", str(environment))
    assert typed() == "dalle-lib"


def test_training_ends_before_the_platform_ends_the_session(monkeypatch):
    def started(hours_ago: float) -> None:
        server = types.SimpleNamespace(create_time=lambda: time.time() - 3600 * hours_ago)
        monkeypatch.setattr(psutil, "Process", lambda: types.SimpleNamespace(parent=lambda: server))

    started(hours_ago=2)
    left = Platform("Kaggle", session_hours=12).minutes_left()
    assert left == pytest.approx(600 - platforms.WIND_UP_MINUTES, abs=0.1)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert platforms.training_minutes(30) == 30
    assert platforms.training_minutes(10_000) == pytest.approx(left, abs=0.1)
    started(hours_ago=11.9)
    assert platforms.training_minutes(30) == 0


def test_the_hub_token_comes_from_the_platforms_secrets_and_nobody_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert platforms.hub_token() is None
    secrets = types.ModuleType("kaggle_secrets")
    kept = {"HF_TOKEN": SECRET}
    secrets.UserSecretsClient = lambda: types.SimpleNamespace(get_secret=kept.__getitem__)
    monkeypatch.setitem(sys.modules, "kaggle_secrets", secrets)
    assert platforms.hub_token() is None, "not on Kaggle"
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert platforms.hub_token() == SECRET
    kept.clear()
    assert platforms.hub_token() is None
    monkeypatch.setenv("HF_TOKEN", "hf_own")
    assert platforms.hub_token() == "hf_own"


def test_16_bits_are_those_that_the_gpu_computes_in(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    for capability, expected in {(7, 5): torch.float16, (7, 0): torch.float16, (8, 0): torch.bfloat16}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert autocast_dtype("cuda:0") == expected
    assert autocast_dtype("cpu") == torch.bfloat16


class BrokenMatmul(TorchDispatchMode):
    """A device whose 16-bit matrix products are wrong."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        is_product = func is torch.ops.aten.mm.default and result.dtype == torch.bfloat16
        return result * 1.1 if is_product else result


def test_a_gpu_has_to_compute_something_right(monkeypatch):
    assert machine.compute_problem(torch.device("cpu")) is None
    with BrokenMatmul():
        assert machine.compute_problem(torch.device("cpu")) == "it multiplies matrices wrongly"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # a driver that counts a GPU which cannot be used
    (gpu,) = machine.gpus()
    assert gpu.problem
    assert "\n" not in gpu.problem
    checks = preflight()
    assert f"not used: {gpu.problem}" in checks.loc["GPU cuda:0", "here"]
    assert choose_device().type == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=rf"expected a? ?device .*but got device='{device}'") as raised:
        TextToImage.from_run("no-such-run", device)
    assert "\n" not in str(raised.value)


def test_room_is_checked_before_a_download(monkeypatch, tmp_path):
    machine.require_room("it", download=10**6, load=10**6, folder=tmp_path)
    with pytest.raises(NotEnoughRoom, match=r"needs 1000000000\.0 GB of disk, but .* Nothing was downloaded"):
        machine.require_room("it", download=10**18, load=0, folder=tmp_path / "not" / "there" / "yet")
    monkeypatch.setattr(machine, "free_memory", lambda: 10**9)
    with pytest.raises(NotEnoughRoom, match=r"needs 2\.0 GB of RAM, but 1\.0 GB are free"):
        machine.require_room("it", download=0, load=1_000_000_001, folder=tmp_path)


def test_a_run_that_does_not_fit_is_not_downloaded(mini, hub, tmp_path, monkeypatch):
    folder = mini.save(tmp_path / "run")
    hub.add("owner/run", folder)
    table = preflight("owner/run")
    needed = sum((folder / file.name).stat().st_size for file in (mini.checkpoint, mini.tokenizer))
    needed += sum(file.stat().st_size for file in (folder / mini.data.train).iterdir())
    assert table.loc["download", "here"] == f"{needed / 1e9:.1f} GB"
    monkeypatch.setattr(machine, "free_memory", lambda: 1000)
    with pytest.raises(NotEnoughRoom, match="emoji-mini needs"):
        TextToImage.from_run("owner/run")
    with pytest.raises(NotEnoughRoom, match="run 'emoji-mini' needs"):
        Workplace.prepare(RunCard.load("owner/run"), PeerSettings(run="owner/run"), "a peer")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_preflight_says_what_is_missing(monkeypatch, hub):
    monkeypatch.setattr("dalle_lib.checks.preflight.free_memory", lambda: 10**10)  # other tests run beside this one
    table = preflight()
    assert list(table.columns) == ["needed", "here", "ok", "remedy"]
    assert table["ok"].all()
    monkeypatch.setattr("dalle_lib.checks.preflight.free_memory", lambda: 10**9)
    assert not preflight().loc["free memory", "ok"]
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setattr(Platform, "minutes_left", lambda _: 0.0)
    assert not preflight().loc["time limit", "ok"]
    run = preflight("owner/nothing").loc["run"]
    assert not run["ok"]
    assert "no run 'owner/nothing'" in run["remedy"]


def finished_peer(folder: Path, **end) -> Peer:
    """A peer that has left its files behind."""
    epoch = {"event": "epoch", "samples": 8, "seconds": 1.0, "peers": 3, "lr": 0.1}
    epochs = [{**epoch, "time": 2.0 + i, "epoch": i, "loss": 3.0 - i} for i in (1, 2)]
    PeerSettings(run="emoji-mini").save(folder / "settings.json")
    joined = {"event": "joined", "time": 1.0, "epoch": 0, "peer_id": "id", "name": "ada"}
    joined |= {"device": "cuda:0, cuda:1", "peers": 3}
    events = [{"event": "started", "time": 0.0, "pid": 1}, joined, *epochs, {"time": 9.0, **end}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "peer.log").write_text("".join(f"line {i} {SECRET}\n" for i in range(50)))
    return Peer(folder)


def test_the_panel_says_which_gpus_compute(tmp_path):
    page = panel_html(finished_peer(tmp_path, event="left", epoch=2, samples=16))
    assert "Computing on cuda:0, cuda:1." in page


def test_a_failure_ends_with_a_block_to_copy(tmp_path, capsys, hub, monkeypatch):
    peer = finished_peer(tmp_path, event="failed", error="RuntimeError: it broke")
    unfinished = {"codecs": None, "p2pd": "it broke before", "first_peers": {}}
    monkeypatch.setattr("dalle_lib.checks.doctor.trial", lambda *_, **__: iter([unfinished]))
    monkeypatch.setattr("dalle_lib.checks.doctor.forecast_checks", lambda *_: pytest.fail("its GPU may be full"))
    with pytest.raises(PeerFailed, match="it broke"):
        watch(peer)
    block = capsys.readouterr().out
    assert block.rstrip().splitlines()[-1].startswith("To ask for help, copy the block above into a new issue at ")
    assert "/issues/new" in block
    assert "torch " in block
    assert "free memory" in block
    assert "it broke before" in block, "the network was tried, too"
    assert [f"line {i} <token>" in block for i in range(50)] == [i >= 50 - LOG_LINES for i in range(50)]
    assert SECRET not in block
    assert "no run 'owner/nothing'" in problem_report(run="owner/nothing")
    PeerSettings(run="owner/other").save(tmp_path / "settings.json")
    assert "no run 'owner/other'" in problem_report(peer), "the peer's own run is checked"


def test_where_nobody_looks_progress_is_text_and_the_panel_comes_at_the_end(tmp_path):
    finished_peer(tmp_path, event="left", epoch=2, samples=16)
    sources = (
        f"from dalle_lib.dashboard.watching import *; from pathlib import Path; peer = Peer(Path({str(tmp_path)!r}))",
        "import os\nos.environ['KAGGLE_KERNEL_RUN_TYPE'] = 'Interactive'\nwatch(peer)",
        "os.environ['KAGGLE_KERNEL_RUN_TYPE'] = 'Batch'\nwatch(peer)",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    _, interactive, batch = NotebookClient(notebook).execute().cells
    for cell, as_text in (interactive, False), (batch, True):
        text = "".join(output.get("text", "") for output in cell.outputs)
        (page,) = (output["data"]["text/html"] for output in cell.outputs if "data" in output)
        assert ("2/– · loss 1.00 · 3 peers · 16 samples" in text) == as_text
        assert "Computing on cuda:0, cuda:1." in page
        assert "<svg" in page


def test_data_that_cannot_be_trained_on_are_told_before_a_peer_connects(mini, tmp_path):
    card, settings = (
        RunCard.load(mini.save(tmp_path / "run")),
        PeerSettings(run="emoji-mini", device="cpu", batch_size=5),
    )
    assert len(next(Workplace.prepare(card, settings, "a peer").batches)) == settings.batch_size
    small = card.with_changes(model=dataclasses.replace(card.model, text_vocab=2))
    with pytest.raises(ValueError, match="text must hold ids from 0 to 1"):
        Workplace.prepare(small.with_changes(checkpoint=None), settings, "a peer")
    (tmp_path / "run" / card.data.train / "codes.parquet").write_bytes(b"broken")
    with pytest.raises(ValueError, match="train is not the folder that run"):
        Workplace.prepare(card, settings, "a peer")
    unpinned = card.with_changes(pins={})
    with pytest.raises(ValueError, match=r"no readable row .* \(578 file differs from the manifest\)\. Get it anew"):
        Workplace.prepare(unpinned, settings, "a peer")
    (tmp_path / "run" / card.data.train / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"train has no manifest\.json, but the run names one"):
        Workplace.prepare(unpinned, settings, "a peer")
    unknown = unpinned.with_changes(data={**card.data.model_dump(), "manifest": None})
    with pytest.raises(ValueError, match=r"codes\.parquet cannot be read as Parquet"):
        Workplace.prepare(unknown, settings, "a peer")
