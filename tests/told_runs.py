"""What a monitor has written into its folder, for tests of the pages that show it."""

import json
from pathlib import Path

from PIL import Image

from dalle_lib.run.newest import TEAM_COLUMNS, USER_COLUMNS

WRITTEN = 1_795_704_933
PROMPTS = {"seen": ["red heart on a blue background", "purple monkey face"], "unseen": ["red fish", "spouting whale"]}


def peer(name: str, state: str = "training", **told) -> dict:
    """Return a peer of a status."""
    usual = {"id": f"Qm{name:0>44.44}", "name": name, "user": name, "team": "", "state": state, "why": "", "epoch": 45,
             "samples_per_s": 18.5, "hardware": "Tesla T4", "kit": "0.2.0", "since": WRITTEN - 3600}  # fmt: skip
    return usual | told


def user(rank: int, name: str, **told) -> list:
    """Return a user's row of a status."""
    usual = {"rank": rank, "user": name, "team": "", "compute_s": 36_000 / rank, "present_s": 50_000 / rank,
             "samples": 1000 + 7 * rank, "share": 0.5 / rank, "percentile": 50.0, "peers": 2,
             "last_seen": WRITTEN - 60 * rank, "day": 1, "week": 1, "month": 1}  # fmt: skip
    return [(usual | told)[column] for column in USER_COLUMNS]


def team(rank: int, name: str) -> list:
    """Return a team's row of a status."""
    told = {"rank": rank, "team": name, "compute_s": 5000, "samples": 70, "share": 0.25, "members": 3}
    return [told[column] for column in TEAM_COLUMNS]


def status(**told) -> dict:
    """Return a status with three peers, four users and two checkpoints, with other values of some fields."""
    peers = told.get("peers", [peer("ada"), peer("bob", "lagging", why="4 epochs behind the others."), peer("eve")])
    states = (
        [each["state"] for each in peers if isinstance(each, dict) and "state" in each]
        if isinstance(peers, list)
        else []
    )
    usual = {
        "run": "org/emoji", "state": "open", "message": "Thank you all!", "written": WRITTEN, "looked": WRITTEN - 5,
        "epoch": 45, "total_epochs": 60, "target_batch_size": 192, "epoch_s": 5.02, "samples_per_s": 38.24,
        "left_s": 75, "loss": 0.5508, "peers": peers, "peers_by_state": {each: states.count(each) for each in states},
        "users": [user(1, "ada"), user(2, "bob"), user(3, "eve"), user(4, "dan")], "teams": [team(1, "owls")],
        "totals": {"users": 5, "peers": 9, "samples": 8640, "compute_s": 75_000, "listed": 4, "teams": 1},
        "alarms": [], "checkpoints": [
            {"epoch": epoch, "made": WRITTEN - 60 * (45 - epoch), "sha256": f"{epoch:064x}", "bytes": 36_860_816,
             "is_sent": epoch < 40, "figures": {"held_out_loss": 2.7, "half_width": 0.2, "rows": 64}}
            for epoch in (44, 20)
        ],
    }  # fmt: skip
    return usual | told


def history(**told) -> dict:
    """Return a history of 45 epochs, with other tables in place of some."""
    epochs = range(1, 46)
    usual = {
        "epochs": {
            "epoch": [*epochs], "ended": [WRITTEN - 5 * (45 - epoch) for epoch in epochs],
            "loss": [2 - epoch / 30 for epoch in epochs], "peers": [3] * 45, "samples_per_s": [38.2] * 45,
            "samples": [192 * epoch for epoch in epochs], "counted_share": [1.0] * 45,
            "spread": [0.003] * 45, "farthest": [0.004] * 45,
        },
        "hours": {"hour": [WRITTEN // 3600], "peers": [2.6], "users": [2.6], "most": [3], "up_mbps": [1.5],
                  "down_mbps": [1.5]},
        "evaluations": {
            "epoch": [20, 44], "made": [WRITTEN - 1500, WRITTEN - 60], "loss": [2.9, 2.7], "low": [2.7, 2.5],
            "high": [3.1, 2.9], "rank": [0.2, 0.4], "rank_chance": [0.07, 0.07], "rank_ceiling": [0.8, 0.8],
            "exact": [0.1, 0.3], "nearest": [0.8, 0.81], "nearest_held_out": [0.8, 0.8],
        },
        "pictures": {
            "epoch": [0, 20, 44], "first": [f"pictures/epoch-{epoch:07}.webp" for epoch in (0, 20, 44)],
            "best": [None, "best/epoch-0000020.webp", "best/epoch-0000044.webp"],
        },
    }  # fmt: skip
    return usual | told


def write_told(folder: Path, told: dict | None = None, went: dict | None = None, prompts: dict = PROMPTS) -> Path:
    """Write a monitor's folder with what it has told, and a small picture for each that the usual history names."""
    for name in "page", "pictures", "best":
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps(status() if told is None else told))
    (folder / "history.json").write_text(json.dumps(history() if went is None else went))
    (folder / "page" / "prompts.json").write_text(json.dumps(prompts))
    for epoch, colour in (0, "grey"), (20, "orange"), (44, "red"):
        for name in "pictures", "best":
            Image.new("RGB", (256, 64), colour).save(folder / name / f"epoch-{epoch:07}.webp")
    return folder
