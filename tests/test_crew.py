"""The peers of a volunteer with several GPUs: the first begins the swarm, the others join it or do not start."""

from types import SimpleNamespace

import pytest

from dalle_lib.swarm import CannotJoin, Peer, PeerSettings
from dalle_lib.swarm.peer.main import _prepare
from dalle_lib.swarm.process.crew import start_crew
from dalle_lib.swarm.process.events import EventLog

HERE = "/ip4/127.0.0.1/tcp/31337/p2p/12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"


def three_gpus(monkeypatch, events: dict[str, dict]) -> list[PeerSettings]:
    """Make three GPUs seem to be there; return where the settings go of peers that would start, and have ended."""

    def start(settings, folder, token, card):
        folder.mkdir(parents=True)
        for event, told in events.items():
            EventLog(folder).write(event, **told)
        EventLog(folder).write("ended")
        started.append(settings)
        return Peer(folder)

    started = []
    monkeypatch.setattr("dalle_lib.swarm.process.crew.join", start)
    monkeypatch.setattr("dalle_lib.swarm.process.crew.GPU_FILES", ["null"])
    monkeypatch.setattr("dalle_lib.machine.working_gpus", lambda: ["cuda:0", "cuda:1", "cuda:2"])
    return started


def test_the_other_gpus_of_one_who_begins_a_swarm_join_the_first(mini, tmp_path, monkeypatch):
    started, told = three_gpus(monkeypatch, {"connected": {"addresses": [HERE]}}), []
    start_crew(PeerSettings(run="emoji-mini", name="ada", alone=True), mini, tmp_path, say=told.append)
    assert [settings.initial_peers for settings in started] == [(), (HERE,), (HERE,)]
    assert told == ["Starting ada on cuda:0; when it can be reached, ada-2, ada-3 join it ..."]


def test_no_other_gpu_starts_where_the_first_cannot_join(mini, tmp_path, monkeypatch):
    started = three_gpus(monkeypatch, {"failed": {"error": "no room", "cannot_join": True}})
    with pytest.raises(CannotJoin, match="no room"):
        start_crew(PeerSettings(run="emoji-mini", alone=True), mini, tmp_path)
    assert len(started) == 1


def test_who_is_interrupted_while_the_gpus_start_leaves_none_of_them_behind(mini, tmp_path, monkeypatch):
    def interrupt(_peer, _event, timeout_s):
        raise KeyboardInterrupt

    started, asked = three_gpus(monkeypatch, {}), []
    monkeypatch.setattr(Peer, "wait_for", interrupt)
    monkeypatch.setattr(Peer, "is_ours", True)
    monkeypatch.setattr(Peer, "ask_to_stop", lambda peer: asked.append(peer.folder.name))
    with pytest.raises(KeyboardInterrupt):
        start_crew(PeerSettings(run="emoji-mini", name="ada", alone=True), mini, tmp_path)
    assert (len(started), asked) == (1, ["ada"])


def test_a_gpu_that_is_not_there_is_told_in_one_line(tmp_path, monkeypatch):
    missing = SimpleNamespace(problem="no NVIDIA driver.\nInstall one")
    monkeypatch.setattr("dalle_lib.swarm.peer.workplace.check_gpu", lambda _: missing)
    settings = PeerSettings(run="emoji-mini", device="cuda")
    with pytest.raises(CannotJoin, match=r"^cuda does not compute here: no NVIDIA driver\. Install one[^\n]*$"):
        _prepare(tmp_path, settings, None, EventLog(tmp_path))
