"""A member that takes part in the hash table alone, and notes what others store with it: `python recorder.py FOLDER`.

FOLDER/settings.json says `run`, a run card's folder. It begins with "ready" on standard output, appends to
FOLDER/records.jsonl one line for each record, and ends with standard input.
"""

import json
import sys
from pathlib import Path

from hivemind.p2p import P2PContext
from hivemind.proto import dht_pb2

from dalle_lib.run import RunCard
from dalle_lib.swarm import hash_table
from dalle_lib.swarm.hash_table import Protocol
from dalle_lib.swarm.peer.main import connect
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.process.local import LOCALHOST
from dalle_lib.swarm.process.settings import PeerSettings

FOLDER = Path(sys.argv[1])
_store = Protocol.rpc_store


async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
    answer = await _store(self, request, context)
    told = request.keys, request.subkeys, request.values
    with open(FOLDER / "records.jsonl", "a") as file:
        for *record, expires, is_stored in zip(*told, request.expiration_time, answer.store_ok, strict=True):
            line = [str(context.remote_id), *(part.hex() for part in record), expires, is_stored]
            file.write(json.dumps(line) + "\n")
    return answer


def main() -> None:
    run = json.loads((FOLDER / "settings.json").read_text())["run"]
    card = RunCard.load(run)
    membership = Membership(card, FOLDER)
    board = MetricsBoard(card.key, membership.identity.private_key)
    Protocol.rpc_store = rpc_store
    hash_table.install()
    validators = [*membership.validators(), *board.validators]
    dht = connect(card, PeerSettings(run=run, host=LOCALHOST), membership, validators)
    membership.publish(dht)
    print("ready", flush=True)
    sys.stdin.read()
    dht.shutdown()


if __name__ == "__main__":
    main()
