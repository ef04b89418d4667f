"""What a volunteer sees of a run beside their own peer, and takes along at the end."""

import html
import io
import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from peer_files import BEGINNING, LEFT, STARTED, epoch, peer_with, running, seen
from PIL import Image
from rich.console import Console
from rich.live import Live

from dalle_lib.auth.keys import PeerKey
from dalle_lib.cli.join import Join, ending
from dalle_lib.dashboard.cards import cards_html
from dalle_lib.dashboard.lapses import show_lapse
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.receipts import NO_RECEIPT, show_receipts
from dalle_lib.dashboard.run_view import RunView
from dalle_lib.dashboard.sharing import NOTHING, next_steps, summary_to_share
from dalle_lib.dashboard.terminal import LivePanel
from dalle_lib.monitor.evaluating import write_picture
from dalle_lib.platforms import Platform, bring_back
from dalle_lib.run import RunCard
from dalle_lib.run.files import Home
from dalle_lib.swarm import Crew, LocalSwarm, Peer, PeerSettings
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.receipt import Receipt
from dalle_lib.swarm.process.standing import Standing

STATUS = {
    "message": "Photos <b>begin</b> tomorrow.",
    "peers": [{"id": "id1", "user": "bob"}, {"id": "id0", "user": "ada"}],
    "users": [
        [rank, user, "", 9000, 9100, 640, 0.3, 50.0, 1, 1_790_000_000, 1, 1, 1]
        for rank, user in ((1, "bob"), (2, "ada"))
    ],
    "totals": {"users": 12},
}  # fmt: skip


@pytest.fixture
def swarm(tmp_path) -> LocalSwarm:
    """A swarm on this machine whose monitor has told of it."""
    (tmp_path / "monitor").mkdir()
    (tmp_path / "monitor" / "status.json").write_text(json.dumps(STATUS))
    return LocalSwarm(tmp_path, "run", bootstrap=Peer(tmp_path / "bootstrap"))


def test_the_panel_has_the_rank_the_time_the_traffic_and_what_the_organiser_says(mini, swarm):
    view, peer = RunView(mini, swarm), peer_with(swarm.folder / "ada", [*BEGINNING, *epoch(10)], mini)
    with running(peer):
        seen(peer.folder, 96, 10)
        view.traffic_mbps()
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
            with server.accept()[0] as receiver:
                for _ in range(100):  # a megabyte, that a machine too busy to look for a minute shows it, too
                    sender.sendall(b"x" * 10_000)
                    receiver.recv(10_000, socket.MSG_WAITALL)
            page = panel_html(peer, view)
    figures = dict(re.findall(r"<div><b>([^<]*)</b>([^<]*)</div>", page.replace("<div><b>", "\n<div><b>")))
    named = {name: value for value, name in figures.items()}
    assert named["your rank of 12"] == "2"
    assert re.fullmatch(r"\d+ (s|min)", named["your time"])
    up, down = map(float, named["Mbit/s up / down"].split(" / "))
    assert up > 0
    assert down > 0
    assert "The organiser says: Photos &lt;b&gt;begin&lt;/b&gt; tomorrow." in page
    assert "The update of epoch 9 holds the gradients of 3 peers; yours are 31% of it." in page


def test_who_has_computed_too_little_for_a_rank_is_told_from_when_on_there_is_one(mini, swarm, tmp_path):
    peer = peer_with(tmp_path / "eve", BEGINNING, mini)
    told = RunView(mini, swarm).facts(Standing.of(peer), "id9")
    assert told["your rank"] == "after 10 min of computing"
    assert "your rank" not in RunView(mini).facts(Standing.of(peer), "id9"), "the run has no monitor"


def test_a_newcomer_that_sees_nobody_yet_gets_no_empty_table(mini, tmp_path):
    seen(tmp_path, 0, at_epoch=9, names=())
    with running(peer_with(tmp_path, BEGINNING, mini)) as peer:
        page = panel_html(peer)
    assert "epoch 9 of 60" in page
    (steps,) = re.findall("<table.*?</table>", page, re.DOTALL)
    assert "<td>connect to the others</td>" in steps
    assert "peers</div>" not in page


def test_what_a_peer_that_has_left_saw_of_the_others_is_not_shown_as_if_it_were_now(mini, tmp_path):
    peer = peer_with(tmp_path, [*BEGINNING, *epoch(12)], mini)
    seen(tmp_path, 96, at_epoch=11)
    with running(peer):
        page = panel_html(peer)
    assert "samples/s</div>" in page
    assert "saw them last" not in page
    page = panel_html(peer_with(tmp_path, [*BEGINNING, *epoch(12), LEFT], mini))
    assert "epoch 12 of 60" in page
    assert "samples/s</div>" not in page
    assert "as yours saw them last" in page


def test_who_is_anonymous_finds_their_rank_by_their_own_hours(mini, tmp_path, hub):
    users = [[rank, name, "", hours * 3600, 1, 1, 0.1, 9.0, 1, 1, 1, 1, 1] for rank, name, hours in
             ((1, "bob", 9), (2, "anonymous-12", 5.9), (3, "eve", 2))]  # fmt: skip
    status = STATUS | {"users": users, "totals": {"users": 12, "listed": 3}}
    hub.add("crew/photos-checkpoints", {"status.json": json.dumps(status).encode()})
    card = RunCard.load(mini.with_changes(checkpoints="crew/photos-checkpoints").save(tmp_path / "run"))
    one = [*epoch(10), *epoch(11)]
    one[1] |= {"compute_s": 1 * 3600}
    one[3] |= {"compute_s": 3 * 3600}
    peers = {name: peer_with(tmp_path / name, [*BEGINNING, *one], mini) for name in ("ada", "ada-2")}
    view, standing, deadline = (
        RunView(card, Crew(tmp_path, "run", peers)),
        Standing.of(peers["ada"]),
        time.monotonic() + 60,
    )
    while not view.status() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert view.facts(standing, "Qm-not-told")["your rank of 12"] == "about 2", "six hours of both peers"
    assert [view.rank_by_own_count(3600 * hours) for hours in (10, 1, 0.1)] == [(1, 12), (4, 12), None]
    status["totals"]["listed"] = 9
    view._told = status
    assert view.rank_by_own_count(3600) is None, "the others of the list are not told"


@pytest.mark.parametrize(("others", "has_receipt"), [({"id1": 0.5}, True), ({}, False)])
def test_who_has_given_something_is_told_how_to_show_it_though_alone_at_the_end(mini, tmp_path, others, has_receipt):
    own = PeerKey.load_or_create(tmp_path / IDENTITY).peer_id
    (averaged, ended), alone = epoch(10), [each | {"peers": 1} for each in epoch(11)]
    events = [*BEGINNING, averaged | {"shares": {own: 0.5, **others}}, ended, *alone, LEFT]
    told = ending(peer_with(tmp_path, events, mini), Join(peer=PeerSettings(run="emoji-mini")), mini)
    assert (f"Receipt: dalle-lib receipt --folder {tmp_path}" in told) == has_receipt


def test_a_terminal_shows_them_too(mini, swarm):
    peer = peer_with(swarm.folder / "ada", [*BEGINNING, *epoch(10)], mini)
    shown = io.StringIO()
    with running(peer), Live(console=Console(file=shown, width=100), auto_refresh=False) as live:
        seen(peer.folder, 96, 10)
        LivePanel(live, view=RunView(mini, swarm))(peer)
    assert re.search(r"your time: \d+ (s|min) · your rank of 12: 2", shown.getvalue())
    assert "The organiser says: Photos <b>begin</b> tomorrow." in shown.getvalue()


@pytest.mark.parametrize(
    "change",
    [{"users": None}, {"users": [[1]]}, {"users": [["x", "ada", *STATUS["users"][0][2:]]]}, {"peers": [1]},
     {"peers": [{"id": "id0"}]}, {"totals": {"users": float("inf")}}, {"totals": []}],
    ids=str,
)  # fmt: skip
def test_nonsense_of_a_monitor_is_no_rank(mini, swarm, change):
    (swarm.folder / "monitor" / "status.json").write_text(json.dumps(STATUS | change))
    assert RunView(mini, swarm).rank("id0") is None


def test_without_a_monitor_the_message_is_the_cards(mini, tmp_path):
    view = RunView(mini.with_changes(message="Welcome."), Crew(tmp_path, "run"))
    assert (view.message(), view.rank("id0")) == ("Welcome.", None)


def test_what_the_monitor_of_a_run_of_others_tells_comes_from_the_hub(mini, hub, tmp_path):
    hub.add("crew/photos-checkpoints", {"status.json": json.dumps(STATUS).encode()})
    card = mini.with_changes(name="photos", checkpoints="crew/photos-checkpoints").save(tmp_path / "run")
    view, deadline = RunView(RunCard.load(card)), time.monotonic() + 60
    while view.rank("id0") is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert view.rank("id0") == (2, 12)


def test_cards_explain_with_the_readers_own_figures(mini, tmp_path):
    before = html.unescape(cards_html(peer_with(tmp_path / "new", BEGINNING), mini))
    after = html.unescape(cards_html(peer_with(tmp_path / "ada", [*BEGINNING, *epoch(10), *epoch(11)]), mini))
    assert before.count("<details>") == after.count("<details>") == 4
    assert before.count("your own figures stand here") == 4
    for own in (
        "in 2 rounds with others: 2.0 peers in a round on average, 2 at most", "Yours were 31% of the averages",
        "waited 1.5 s for each, in epochs of 6 s", "96 samples in each of 2 epochs, which took 6 s each",
        "has sent 5.8 MB for a round",
    ):  # fmt: skip
        assert own in after


@pytest.mark.parametrize(
    ("averaging", "told"),
    [({"delayed": False}, "nothing is delayed"), ({"delayed": "averaging"}, "waits for nothing"),
     ({"delayed": False, "strategy": "local"}, "steps of its own")],
    ids=str,
)  # fmt: skip
def test_cards_say_what_this_run_does(mini, tmp_path, averaging, told):
    card = mini.with_changes(averaging={**mini.averaging.model_dump(), **averaging})
    assert told in cards_html(peer_with(tmp_path, BEGINNING), card)


@pytest.fixture
def drawn(tmp_path) -> Path:
    """The folder of a monitor with pictures of two checkpoints."""
    monitor = tmp_path / "monitor"
    (monitor / "page").mkdir(parents=True)
    for number, colour in (0, "grey"), (12, "red"):
        write_picture(monitor / "pictures" / f"epoch-{number:07}.webp", Image.new("RGB", (264, 132), colour))
    (monitor / "page" / "prompts.json").write_text(json.dumps({"seen": ["<b>red</b> apple"], "unseen": ["dog"]}))
    return monitor


def test_the_time_lapse_is_that_of_the_swarm_here_or_of_the_runs_checkpoints_on_the_hub(mini, hub, drawn, tmp_path):
    out = tmp_path / "out"
    here = LocalSwarm(tmp_path, "run", bootstrap=Peer(tmp_path / "bootstrap"))
    shown = show_lapse(here, mini, out).data
    with Image.open(out / "time_lapse.gif") as lapse:
        assert lapse.n_frames == 2
    others = Crew(tmp_path, "run")
    assert "names no place for them" in html.unescape(show_lapse(others, mini, out).data)
    card = RunCard.load(mini.with_changes(name="photos", checkpoints="crew/photos-checkpoints").save(tmp_path / "run"))
    assert "There are no pictures" in show_lapse(others, card, out).data
    files = {"page/lapse.webp": (out / "time_lapse.webp").read_bytes()}
    hub.add(card.checkpoints, files | {"page/prompts.json": (drawn / "page" / "prompts.json").read_bytes()})
    assert "data:image/webp;base64," in shown
    assert show_lapse(others, card, tmp_path / "others").data.partition("<ol>")[0] == shown.partition("<ol>")[0]
    for each in shown, show_lapse(others, card, out).data:
        assert "&lt;b&gt;red&lt;/b&gt; apple" in each
        assert "<b>red" not in each


@pytest.fixture
def crew(mini, tmp_path) -> Crew:
    """A volunteer's two peers in a run of others, of which one has given something."""
    key = PeerKey.load_or_create(tmp_path / "ada" / IDENTITY)
    shares = {key.peer_id: 0.25, "bob": 0.75}
    joined = {"event": "joined", "peer_id": key.peer_id, "name": "ada", "epoch": 812}
    rounds = [
        {"event": "averaged", "epoch": each, "shares": shares, "counted": shares, "error": None} for each in (812, 954)
    ]
    ada = peer_with(tmp_path / "ada", [STARTED, joined, *rounds, LEFT], mini)
    return Crew(tmp_path, "run", {"ada": ada, "ada-2": peer_with(tmp_path / "ada-2", [STARTED], mini)})


def test_each_peer_that_has_given_gets_a_receipt_that_others_can_check(crew, tmp_path):
    shown = html.unescape(show_receipts(crew, tmp_path / "out").data)
    (file,) = (tmp_path / "out" / "receipts").glob("*")
    assert f"dalle-lib receipt --check {file}" in shown
    assert all(part in shown for part in ("25.0%", "812 to 954", "✓"))
    Receipt.load(file).check()
    assert NO_RECEIPT in show_receipts(Crew(tmp_path, "run", {"ada-2": crew.peers["ada-2"]}), tmp_path).data


def test_the_summary_says_where_one_was_and_how_others_join(mini, crew, tmp_path):
    told = summary_to_share(crew.peers["ada"], crew, mini)
    assert "I was there for epochs 812 to 954: 25.0% of the gradients were mine." in told
    assert "300 samples in 3 s" in told
    assert "Reached: first gradient that counted. Next: 10 epochs." in told
    assert "join" not in told
    assert summary_to_share(crew.peers["ada-2"], Crew(tmp_path, "run", {"ada-2": crew.peers["ada-2"]}), mini) == NOTHING
    published = mini.with_changes(name="photos")
    published._home = Home(tmp_path, "crew/photos")
    assert "dalle-lib join --run crew/photos" in summary_to_share(crew.peers["ada"], crew, published)
    PeerSettings(run="x", name="ada", team="Night Owls").save(crew.peers["ada"].folder / "settings.json")
    assert "--name YOUR-NAME --team 'Night Owls'" in summary_to_share(crew.peers["ada"], crew, published)


@pytest.mark.parametrize(
    ("platform", "told"),
    [("Kaggle", "Save & Run All"), ("Colab", "gone when the session ends"), ("your own machine", "from where it was")],
)
def test_each_platform_has_its_way_to_go_on(platform, told):
    assert told in next_steps("owner/name", "outputs/demo", Platform(platform))
    assert "begins anew" in next_steps("emoji-mini", "outputs/demo", Platform(platform))


def test_on_kaggle_a_peer_goes_on_from_the_output_that_was_added(tmp_path, monkeypatch):
    (here := tmp_path / "working").mkdir()
    monkeypatch.chdir(here)
    folder, added = "outputs/demo/photos-12ab", tmp_path / "input"
    assert bring_back(folder, added) is None, "this is no Kaggle"
    for age_s, name in (50, "my-notebook"), (10, "notebooks/ada/my-notebook"):
        kept = added / name / folder
        (kept / "ada").mkdir(parents=True)
        (kept / "ada" / "identity.key").write_text(name)
        os.utime(kept, (time.time() - age_s,) * 2)
    assert bring_back(folder, added) == added / "notebooks/ada/my-notebook" / folder
    assert (here / folder / "ada" / "identity.key").read_text() == "notebooks/ada/my-notebook"
    assert bring_back(folder, added) is None, "what is here stays"
