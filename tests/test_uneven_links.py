"""Peers behind links of uneven speed: who reduces follows what the others have measured.

Real peers, which reach each other over the relay of `rehearsal/links.py`.
"""

import json
import subprocess
import sys
from pathlib import Path

from dalle_lib.rehearsal.links import Link, Relay

SCRIPT = Path(__file__).parent / "linked_peer.py"
SLOW, FAST = Link(up_mbps=8, down_mbps=80), Link(up_mbps=80, down_mbps=80)
TENSORS, ROUNDS = 12, 8


def rounds_of(folder: Path, links: list[Link], measures: bool) -> list[list[dict]]:
    """Return what each peer has written of each round, with what each link's peer reduced in it, relative to all."""
    with Relay() as relay:
        peers, known = [], []
        for number, link in enumerate(links):
            plug, own = relay.plug(link), folder / f"peer-{number}"
            own.mkdir(parents=True)
            settings = {
                "listens_at": plug.listens_at, "announced_at": plug.announced_at, "known": list(known),
                "peers": len(links), "measures": measures, "tensors": TENSORS, "rounds": ROUNDS, "value": float(number),
            }  # fmt: skip
            (own / "settings.json").write_text(json.dumps(settings))
            with (own / "peer.log").open("w") as log:
                peers.append(subprocess.Popen([sys.executable, SCRIPT, own], stdout=log, stderr=log))
            plug.process = peers[-1].pid
            while not ((own / "id").exists() and (own / "id").read_text()):
                assert peers[-1].poll() is None, (own / "peer.log").read_text()
            known.append(f"{plug.announced_at}/p2p/{(own / 'id').read_text()}")
        for peer in peers:
            peer.wait(timeout=400)
    ids = [known_at.rpartition("/")[2] for known_at in known]
    told = [
        list(map(json.loads, (folder / f"peer-{n}" / "rounds.jsonl").read_text().splitlines()))
        for n in range(len(links))
    ]
    for one in [one for rounds in told for one in rounds]:
        one["shares"] = [one["shares"][peer] / sum(one["shares"].values()) for peer in ids]
    return told
