"""Every message of a peer has an entry in docs/troubleshooting.md."""

import re
from collections import Counter
from collections.abc import Iterator

from checkout import ROOT, load_script
from messages import PACKAGE, messages_in

from dalle_lib.swarm.averaging.run_optimizer import RUN_IS_ONE, RUN_SPLIT
from dalle_lib.swarm.averaging.two_groups import TWO_GROUPS
from dalle_lib.troubles import SEVERITIES, TROUBLES, trouble_in

RAISING = (
    "swarm/process", "swarm/peer", "monitor", "machine.py", "files.py", "hub_http.py", "checkpoint.py",
    "auth/bans.py", "auth/held.py", "auth/hub_authorizer.py", "auth/identity.py", "auth/keys.py", "auth/members.py",
    "auth/tokens.py", "auth/upkeep.py",
    *(f"run/{name}.py" for name in ("card", "files", "newest", "start", "state")),
    *(f"streaming/{name}.py" for name in ("batches", "codes", "data_set", "fetch", "local_files", "stream")),
)  # fmt: skip
"""Modules whose errors end a peer. Those of the others reach a person as the reason in a message of these."""
TELLING = ("swarm", "auth", "checks", "monitor", "streaming")
"""Folders whose log lines, events, complaints, refusals, checks and alarms a person may see."""
ORGANISERS = ("auth/server", "auth/authority.py", "streaming/prepare")
"""What an organiser's own programs log and raise; the refusals of the server reach peers all the same."""
NO_TROUBLE = """
    … takes part as …, a … of ….…
    Checkpoint of epoch ….
    Checkpoint of epoch …: … on held-out data.
    Checkpoint of epoch … is at ….
    The run … is finished: its last checkpoint lies beside its card. Thanks to everybody!
    Problem: …
"""
"""What is said of what goes well, or of a message that is looked at elsewhere."""
REASONS = """
    … is no peer's id, a part of it may be missing
    … is no machine's name
    … holds for one machine alone, because of its %
    there is no port …
    no answer within … s
    no peer is there, but something else
    nobody with the id in the address answers there
    …, while it waited for first peers
    there is a peer, but its hash table is silent: it hangs, or is of something else
    the key is not that of …
    … cannot be …
    hivemind's fields do not say what the authority signed
    expected a file, but it is a folder or a pipe
    expected an epoch in its metadata, but got …
    expected a state of epoch …, but it is of epoch …
    expected a hash as …, but got …
    less than … bytes a second come
    more than … bytes come
    expected texts, but got … and …
    expected bytes … from 0 to 10**18, but got …
    expected a wish and its time, but got … and …
    this user has no home: name a folder as XDG_STATE_HOME
    process … is another program
    expected a number of epochs above 0, but got …
    expected addresses of peers, but got …
    expected a name as peers have, but got ….
    expected a line to read, but got ….
    expected a JSON object, but got …
    expected a request that names a list of ports
    expected … to be …, but got …
    expected param_groups such as …, but got …
    expected finite numbers, but it holds NaN or infinity
    no finite gradient in … steps
    expected a serial from 0 to 2**63 - 1, not …
    expected names of banned users in lower case, not …
    expected versions of the kit as in ">=0.2" or ">=0.2,<0.4", but got …
    expected a grid, a codebook_size and a vqgan_sha256, but got …
    expected … rows in row group …, but got …
    …, but the first … take …: write fewer to a file
    expected the part of reader number 0 to … of …, but got ….
    expected the receipt of a stream, but got ….
    expected what CodeStream.state_dict returned, but got ….
    … message: expected …, which peers of a run send.
    … was closed
    the stream was closed
    a line of more than … bytes
    expected version … of a recording, but it is …
    a line that no recorder writes: …
    this system has no files in memory without a name
    does not answer
    does not start: …
    ended with exit code …
    a checkpoint of which no monitor tells
    prompts that no monitor draws
    more than … …, as in no run
    expected key, subkey, value and time of a record, but got …
    FAILED run … → …
    FAILED run … is … → …
"""
"""Texts that a person sees only within another message, or not at all: they are for whoever calls the function."""


def found() -> Iterator[tuple[str, str, str]]:
    """Yield module, kind and text of each message that a peer, its checks or its monitor may write."""
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith((*RAISING, *TELLING)):
            for kind, text in messages_in(file):
                is_seen = place.startswith(RAISING if kind.startswith("raise") else TELLING)
                is_organisers = place.startswith(ORGANISERS) and kind != "Refusal"
                if is_seen and not is_organisers and re.search("[a-z]{2}", text):
                    yield place, kind, text


def listed(texts: str) -> list[str]:
    return [line.strip() for line in texts.strip().splitlines()]


def test_each_message_has_an_entry_unless_it_is_listed_here():
    known, missing, seen = {*listed(REASONS), *listed(NO_TROUBLE)}, [], Counter()
    for place, kind, text in found():
        seen[kind.split()[0]] += 1
        # "it has no port" is said of something that the message names in which this is the reason.
        is_reason = kind not in ("tell", "event") and re.match("its? ", text)
        if text in known:
            seen[text] += 1
        elif not is_reason and trouble_in(text) is None:
            missing.append(f"{place}: {text}")
    assert not missing, "write an entry in dalle_lib/troubles, and run python scripts/troubleshooting.py"
    for kind in ("raise", "log", "tell", "event", "check", "Refusal", "Problem", "say", "found", "return"):
        assert seen[kind] >= 3, f"no {kind} is found any more"
    assert not [text for text in known if not seen[text]], "these are in the code no more"


REAL = {
    "none of the first peers of owner/name answers (no answer within 5 s). Is this machine online?":
        "no-first-peer-answers",
    "the authority of cats refuses this peer: expected a member of the Hugging Face organisation 'cats', but the Hub "
    "does not name ada. Join it at the link, then try again.": "not-a-member",
    "the authority of cats, https://run.example.org, says: too many requests came from your address. Try again in 9 s.":
        "authority-busy",
    "Peer x7Qabc: this peer's access token ended at 12:00 UTC, so others refuse it: the authority of cats, "
    "https://run.example.org, cannot be reached (ConnectError).": "access-token-not-renewed",
    "FAILED  run              cats is paused; needed: open\n   → run 'cats' is paused, so nobody can join it now.":
        "run-closed",
    "FAILED  run              cats cannot be read; needed: can be read\n   → no run 'cats': there is no such folder.":
        "run-cannot-be-read",
    "FAILED  first peers      0 of 1 answer, not QmX (refused); needed: one that answers": "no-first-peer-answers",
    "FAILED  run it serves    status 404; needed: cats": "authority-not-ready",
    "Ended by an error: OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": "out-of-memory",
    "Ended without saving, as far as its events tell: it was killed, the machine was switched off, or its disk took no "
    "more events": "killed",
    "peers/cats/ada/model.safetensors cannot be read as progress (it is cut off). Remove it": "progress-broken",
    "32 samples of yours are not in the others' update of epoch 9: the others are at epoch 30: took over their state.":
        "samples-lost",
    "8 samples of yours are not in the others' update of epoch 9: the parameters of this peer's part of the run are "
    "not those of most users, and others go on: took over their state.": "run-split",
    "this peer's progress was not saved: [Errno 28] No space left on device": "progress-not-saved",
    "expected to count this month's traffic in /home/ada/.local/state/dalle-lib/traffic, but [Errno 30] Read-only file "
    "system: '/home/ada/.local'. Without that --monthly-gb cannot be kept": "traffic-not-counted",
    "Data: 7 of 900 rows left out (7 no caption).": "data-left-out",
    "2026-11-26 01:00:00 WARNING dalle_lib.swarm.averaging.complaints: QmX: its tensors were refused: too long":
        "tensors-refused",
    "run 'cats' trains with dalle-lib 0.4.0 (protocol 5), you have 0.3.0 (protocol 4): update": "another-version",
    "This peer: a peer of this run's name has dalle-lib 0.4.0 (protocol 5), this one 0.3.0 (protocol 4): they":
        "others-with-another-version",
    "bob (x7Qabc) is 4 epochs behind the others.": "peer-far-from-others",
    RUN_SPLIT.format("1 peer trains"): "run-split",
    RUN_IS_ONE.format("1 peer that trained apart trains"): "run-split",
    "Your part of the run gave way: none of your samples is lost. Your peer took over the others' state of epoch 6 and "
    "goes on.": "run-split",
    TWO_GROUPS.format(4, 2): "averaged-in-two-groups",
    "Epoch 14: this peer has its own gradient only: nobody to average with was found in time.": "averaging-failed",
    "Peer x7Qabc: it did not reduce its parts: it says that ours came too slowly, and most others do not.":
        "too-slow-for-the-others",
    "Peer x7Qabc: it did not reduce its parts: no answer.": "peer-silent",
    "Paused: on battery, until it is plugged in": "paused-by-the-machine",
    "12:30: paused: other programs use this machine, until they leave it alone.": "paused-by-the-machine",
    "Waiting for the state of another peer: place 2 in its line": "waiting-for-a-state",
    "Next to get the state of another peer, which averages with the others for some seconds": "waiting-for-a-state",
    "Fetching the run's newest checkpoint: 34% is here": "waiting-for-a-state",
    "Your proof of identity counts until 2026-12-04 10:45; then the peer leaves": "proof-of-identity-ends",
    "14:05: this computer slept for 2 h 0 min, or its clock was set. Your peer goes on by itself.": "computer-slept",
}  # fmt: skip


def test_messages_as_they_are_lead_to_the_entry_that_fits():
    assert {message: getattr(trouble_in(message), "name", None) for message in REAL} == REAL
    for healthy in ("12/60 · loss 1.43 · 3 peers · yours 31% · 2,192 samples · 5 min left", "Training with the others"):
        assert trouble_in(healthy) is None


def test_the_page_is_the_tables_and_its_links_lead_somewhere():
    script = load_script("scripts/troubleshooting")
    assert script.FILE.read_text() == script.page(), "run python scripts/troubleshooting.py"
    names = [trouble.name for trouble in TROUBLES]
    assert len({*names}) == len(names)
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in names)
    assert {trouble.severity for trouble in TROUBLES} == {*SEVERITIES}
    anchors = [title.lower().replace(" ", "-") for title in re.findall("^### (.*)$", script.page(), re.M)]
    assert anchors == names == re.findall(r"\]\(#([^)]+)\)", script.page())
    assert TROUBLES[0].link.endswith(f"/blob/main/docs/{script.FILE.name}#{names[0]}")
    assert (ROOT / "docs" / script.FILE.name) == script.FILE
