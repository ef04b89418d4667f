"""A peer that averages gradients again and again over a link, and writes how long each round took and who reduced what.

tests/test_uneven_links.py starts it as `python linked_peer.py FOLDER`, with its settings in FOLDER/settings.json.
"""

import json
import sys
import time
from pathlib import Path

import hivemind
import torch
from hivemind.dht.crypto import RSASignatureValidator

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.introductions import Introduction, shares_and_counted
from dalle_lib.swarm.averaging.trust import Trust


class Vouching(Trust):
    """The trust of a run whose peers are all vouched for: what each has measured counts."""

    def is_vouched(self, peer_id: str) -> bool:
        return True


PATIENCE_S = 300.0
"""Seconds for which a peer looks for its group: the last peers of a busy machine may start minutes after the first."""


def watched(folder: Path) -> type[RunGradientAverager]:
    """Return the averager, which writes a line of JSON after each round."""

    class Watched(RunGradientAverager):
        async def _run_allreduce_inplace_(self, tensors, group_info, **kwargs) -> None:
            began = time.monotonic()
            await super()._run_allreduce_inplace_(tensors, group_info, **kwargs)
            shares, _counted = shares_and_counted(group_info.gathered)
            told = {"seconds": time.monotonic() - began, "mean": float(tensors[0].mean())}
            told["shares"] = {str(peer): share for peer, share in zip(group_info.peer_ids, shares, strict=True)}
            with (folder / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(told) + "\n")

    return Watched


def last_shares(folder: Path) -> list[float]:
    """Return the shares of the last round, which sum to 1, from the smallest to the largest."""
    shares = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])["shares"].values()
    return sorted(share / sum(shares) for share in shares)


def main(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    codec.install()
    torch.set_num_threads(1)
    file = folder / "identity.pem"
    identity = Identity.load_or_create(file)
    dht = hivemind.DHT(
        start=True, initial_peers=settings["known"], host_maddrs=[settings["listens_at"]], startup_timeout=60,
        announce_maddrs=[settings["announced_at"]], identity_path=str(file),
        record_validators=[RSASignatureValidator(identity.private_key)], check_if_identity_free=False,
    )  # fmt: skip
    (folder / "id").write_text(str(dht.peer_id))
    parameters = [torch.nn.Parameter(torch.zeros(2**18)) for _ in range(settings["tensors"])]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, settings["value"])
    averager = watched(folder)(
        parameters, dht=dht, prefix="links", start=True, min_matchmaking_time=4.0, request_timeout=2.0,
        target_group_size=settings["peers"], min_group_size=settings["peers"], next_chunk_timeout=60.0,
        reuse_grad_buffers=True, warn=False, trust=Vouching(identity=identity, measures=True),
        compression=codec.compression(2**16), part_size_bytes=2**16,
    )  # fmt: skip
    averager.accumulate_grads_(batch_size=1)
    for epoch in range(settings["rounds"]):
        averager.introduction = Introduction(epoch=epoch)
        averager.step(weight=1.0, reset_accumulators=False, timeout=PATIENCE_S)
        if last_shares(folder) == settings["until"]:
            break  # all peers, as all compute the same shares
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
