"""`dalle-lib generate`: what it draws, what it refuses before the model loads, and what it asks."""

import errno
import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import answer
from peer_files import peer_with
from PIL import Image

from dalle_lib.cli import main
from dalle_lib.cli.generate import describe_drawing, drawer, one_or_many
from dalle_lib.dashboard.pictures import best_of
from dalle_lib.inference import TextToImage
from dalle_lib.run import RunCard


@pytest.fixture(scope="module")
def draw() -> TextToImage:
    """The model whose pictures have the fewest codes."""
    return TextToImage.from_run("emoji-mini", device="cpu")


def test_the_terminal_draws_the_same_as_python(draw, tmp_path):
    command = [sys.executable, "-m", "dalle_lib", "generate", "green frog", "--run", "emoji-mini", "--best", "2"]
    command += ["--candidates", "4", "--seed", "5", "--top-k", "8", "--guidance", "1"]
    command += ["--json", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no progress bar, no warning"
    (told,) = json.loads(done.stdout)
    expected = draw("green frog", candidates=4, best=2, seed=5, top_k=8, guidance=1.0)
    assert [p["candidate"] for p in told["pictures"]] == [f"{number + 1} of 4" for number in expected.best]
    assert [p["count"] for p in told["pictures"]] == [choice.count for choice in expected.choices]
    with Image.open(told["pictures"][0]["file"]) as picture:
        assert picture.tobytes() == expected.pictures[0].tobytes()
    assert Path(told["sheet"]).is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["frog", "--best", "0"],
            "whole numbers of at least 1, but got best=0, candidates=32",
        ),
        (
            ["frog", "--candidates", "0"],
            "whole numbers of at least 1, but got best=4, candidates=0",
        ),
        (["frog", "--out", "/dev/null/pictures"], "expected a folder to write to, but got /dev/null/pictures"),
        (["frog", "--temperature", "0"], "greedily), but got temperature=0.0."),
        (["frog", "--seed", "-1"], "expected seed to be a whole number from 0"),
        (["frog", "--preset", "paper-top-p", "--top-p", "0.5"], "preset paper-top-p means top_p=0.75"),
        (["frog", "--preset", "paper-top-k", "--best", "0"], "candidates=128"),
        ([" "], "expected prompts of at least one word"),
        (["frog", "?!"], "prompt 2 of 2 is '?!'"),
        ([], "expected prompts of at least one word"),
    ],
)
def test_settings_are_checked_before_the_model_loads(options, message, monkeypatch):
    monkeypatch.setattr(TextToImage, "from_run", lambda *_: pytest.fail("the model was loaded"))
    assert message in answer(monkeypatch, "generate", *options)


def test_prompts_that_a_file_name_cannot_spell_have_files_of_their_own(draw, tmp_path):
    drawing, long = draw("frog", candidates=1, best=1, seed=1), "frog " * 20
    for prompt in "カエル", "ペンギン", "🐸", "🐧", f"{long}a", f"{long}b", "été", "!!!":
        files = replace(drawing, prompt=prompt).save(tmp_path)
        with Image.open(files[0]) as picture:
            assert picture.text["prompt"] == prompt
    names = [file.name for file in tmp_path.iterdir()]
    assert len(names) == 8 * 2
    assert all(name.isascii() and len(name) < 100 for name in names)


def test_a_picture_that_cannot_be_written_leaves_nothing(draw, tmp_path, monkeypatch):
    def fill_disk(_, file, *__, **___):
        Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    drawing = draw("frog", candidates=1, best=1, seed=1)
    monkeypatch.setattr(Image.Image, "save", fill_disk)
    with pytest.raises(OSError, match=r"1-1\.png, but it could not be written \(No space left on device\)"):
        drawing.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_long_prompt_is_told_to_be_cut_and_not_repeated_whole(draw, caplog):
    prompt = " ".join(f"zeppelin{number}" for number in range(100))
    drawing = draw(prompt, candidates=1, best=1, seed=0)
    cut, length = caplog.messages[-1], draw.tokenizer.text_length
    assert cut.startswith(f"only its first {length} text tokens are read: ...")
    assert prompt.startswith(draw.tokenizer.read_part(prompt))
    told = "\n".join([*caplog.messages, describe_drawing(drawing, [Path("a"), Path("b")])])
    assert "and 95 more words in its training data" in told
    assert len(told) < 800
    caplog.clear()
    draw("frog", candidates=1, best=1, seed=0)
    assert not caplog.messages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_how_far_a_drawing_is(draw, monkeypatch, tmp_path):
    monkeypatch.setattr(TextToImage, "from_run", lambda *_, **__: draw)
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "generate", "frog", "--candidates", "1", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    main()
    *shown, last = terminal.getvalue().removesuffix("\r").split("\r\x1b[K")
    assert shown[0] == "\x1b[Kloading the model ..."
    assert "frog: 50% of 1 candidates ..." in shown
    assert last == "", "nothing remains of the line"
    assert len(list(tmp_path.iterdir())) == 2, "the best one and the sheet: fewer candidates than --best are no mistake"


def test_ctrl_c_ends_in_one_line_and_writes_nothing(monkeypatch, tmp_path):
    def interrupt(*_, progress, **__):
        progress("frog: 50% of 1 candidates ...")
        raise KeyboardInterrupt

    monkeypatch.setattr(TextToImage, "from_run", lambda *_, **__: interrupt)
    monkeypatch.setattr(sys, "argv", ["dalle-lib", "generate", "frog", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert terminal.getvalue().endswith("candidates ...\r\r\x1b[Kdalle-lib: stopped.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_without_quotes_is_asked_about_in_one_line(monkeypatch, capsys):
    words = ["penguin", "on", "yellow"]
    assert one_or_many(["red apple", "frog"]) == ["red apple", "frog"]
    assert one_or_many(["frog"]) == ["frog"]
    for said, meant in ("", ["penguin on yellow"]), ("y", ["penguin on yellow"]), ("No", words):
        monkeypatch.setattr(sys, "stdin", Terminal(f"{said}\n"))
        assert one_or_many(words) == meant
        assert capsys.readouterr() == ("", 'Is "penguin on yellow" one prompt? [Y/n] ')
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(ValueError, match='the input ended: quote the prompt, "penguin on yellow"'):
        one_or_many(words)
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert one_or_many(words) == words
    assert capsys.readouterr().err == '3 prompts of one word each; if one was meant, quote it: "penguin on yellow"\n'


def test_a_folder_without_a_peer_or_without_its_model_is_told(mini, tmp_path):
    with pytest.raises(ValueError, match="no run"):
        drawer(str(tmp_path / "nobody"), None)
    peer_with(tmp_path / "ada", [], mini)
    with pytest.raises(ValueError, match=r"there is no peer in .*nobody\. Expected one of .*ada\."):
        drawer(str(tmp_path / "nobody"), None)
    with pytest.raises(ValueError, match=r"the peer in .*ada has saved no model yet: it does so when it leaves"):
        drawer(str(tmp_path / "ada"), None)
    peer_with(tmp_path / "watched" / "monitor", [], mini, name="monitor", role="observer")
    with pytest.raises(ValueError, match=r"watched is no run, but holds peers: name one of .*monitor\."):
        drawer(str(tmp_path / "watched"), None)
    with pytest.raises(ValueError, match="does so with the run's first checkpoint"):
        drawer(str(tmp_path / "watched" / "monitor"), None)


def test_the_terminal_explains_a_mistake(tmp_path):
    command = [sys.executable, "-m", "dalle_lib", "generate", "frog", "--run", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "expected an embedded run (emoji, emoji-mini)" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_clip_the_commonest_pictures_come_first(tmp_path, capsys, monkeypatch):
    folder = RunCard.load("emoji").save(tmp_path / "run")
    shutil.rmtree(folder / RunCard.load("emoji").clip)
    typed = ["dalle-lib", "generate", "penguin on a yellow background", "--run", str(folder), "--seed", "1"]
    typed += ["--candidates", "12", "--temperature", "2", "--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", typed)
    with pytest.raises(SystemExit):
        main()
    assert "--no-clip" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*typed, "--no-clip", "--json"])
    main()
    (told,) = json.loads(capsys.readouterr().out)
    counts = [picture["count"] for picture in told["pictures"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 1
    assert told["noise"] is None
    assert "score" not in told["pictures"][0]
    drawing = TextToImage.from_run(folder, "cpu", clip=False)("green frog", candidates=2, best=1, seed=1)
    assert drawing.labels == [f"x{drawing.choices[0].count}"]
    assert "in the order drawn" in best_of(drawing).data
    with pytest.raises(ValueError, match="clip=True"):
        TextToImage.from_run(folder, "cpu", clip=False).nearest_training("green frog")
