"""Does the authority's server take ten volunteers a second for a minute, and lose none?

Starts the server as a process of its own (`dalle-lib auth-server serve`) beside the tests' stand-in for the Hub, and
joins over HTTP at a steady rate, whatever the answers take: the even joins by the device flow (begin, a first poll that
finds the code open, approval, a second poll), the odd ones by a Hub token. Each has a user, a key and a signature of
its own; keys are made before the clock starts. Each access token is then checked against the card's root key.

Prints JSON: the slowest of 99 in 100 first answers in seconds (figure), the second after which a person notices a wait
(reference), their ratio, joins asked for and done, refusals by cause, and how late the last join began. Needs the
extra server. Takes two minutes.
"""

import asyncio
import base64
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from auth_asking import Key, joined_body, lay_out, signed_body

from dalle_lib.auth import AccessToken, Authority
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.server import Folder, RunSettings, ServerSettings
from dalle_lib.hub_http import httpx
from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import Hub, User
from dalle_lib.run import RunCard
from dalle_lib.run.parts import MembersCard

NOTICED_S = 1.0
PORT = 8199


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure."""

    rate: float = 10.0
    """Joins a second."""
    seconds: float = 60.0
    """How long they come."""


class Joins:
    """The volunteers, and what came of each."""

    def __init__(self, oauth: OAuth, client, keys: list[Key]) -> None:
        self.oauth, self.client, self.keys = oauth, client, keys
        self.first_s: list[float] = []
        self.tokens: list[AccessToken] = []
        self.refused: Counter = Counter()
        self.late_s = 0.0

    async def ask(self, path: str, body: dict, token: str | None = None) -> dict:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        began = time.perf_counter()
        answer = await self.client.post(f"/runs/club{path}", json=body, headers=headers)
        self.first_s.append(time.perf_counter() - began)
        told = answer.json()
        if "error" in told:
            self.refused[told["error"]] += 1
        return told

    async def join(self, number: int, at: float) -> None:
        await asyncio.sleep(max(at - time.perf_counter(), 0))
        self.late_s = max(self.late_s, time.perf_counter() - at)
        key = self.keys[number]
        if number % 2:
            told = await self.ask("/token", joined_body(key, "token"), f"hf_{number}")
        else:
            flow = await self.ask("/device", joined_body(key, "device"))
            place, asked = f"/device/{flow['handle']}", (key, "poll", flow["handle"])
            await self.ask(place, signed_body(*asked))
            self.oauth.answer(flow["code"], self.oauth.hub.users[f"hf_{number}"])
            await asyncio.sleep(flow["interval_s"])
            told = await self.ask(place, signed_body(*asked))
        if "access_token" in told:
            self.tokens.append(AccessToken.from_bytes(base64.b64decode(told["access_token"])))


async def measured(benchmark: Benchmark, oauth: OAuth, keys: list[Key]) -> Joins:
    """Return the joins, all of them over."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=60) as client:
        for _ in range(600):
            try:
                await client.get("/healthz")
                break
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
        joins, began = Joins(oauth, client, keys), time.perf_counter()
        each = 1 / benchmark.rate
        await asyncio.gather(*(joins.join(number, began + number * each) for number in range(len(keys))))
    return joins


def main(benchmark: Benchmark) -> None:
    """Measure, and print the figures."""
    count = round(benchmark.rate * benchmark.seconds)
    keys = [Key() for _ in range(count)]
    with tempfile.TemporaryDirectory() as place, Hub(Path(place, "hub")) as hub:
        hub.users |= {f"hf_{number}": User(f"user{number}", {"crew": "read"}) for number in range(count)}
        root, folder = Authority.generate(), Folder(Path(place, "authority"))
        members = MembersCard(authority=root.public_key, organization="crew", client_id="app")
        card = RunCard.load("emoji-mini").with_changes(name="club", members=members)
        many = {"requests_per_minute": 10**6, "joins_per_minute": 10**6}
        lay_out(folder, card, root, ServerSettings(runs=(RunSettings(card="card"),), **many))
        command = [sys.executable, "-m", "dalle_lib", "auth-server", "serve", "--folder", folder.path, "--port"]
        environment = os.environ | {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1"}
        server = subprocess.Popen([*command, str(PORT)], env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            joins = asyncio.run(measured(benchmark, OAuth(hub), keys))
        finally:
            server.terminate()
            server.wait(60)
    for token in joins.tokens:
        token.check(authority_key(root.public_key), "club", datetime.now(UTC))
    slow_s = sorted(joins.first_s)[int(len(joins.first_s) * 0.99)]
    result = {"figure": slow_s, "reference": NOTICED_S, "ratio": slow_s / NOTICED_S, "joins": count}
    result |= {"users with an access token": len({token.user for token in joins.tokens}), "refused": joins.refused}
    result |= {"seconds, median": sorted(joins.first_s)[len(joins.first_s) // 2], "late": joins.late_s}
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
