"""One of two peers that average once: `wire_peer.py CODECS SEED FILE`, with CODECS "stock" or "ours".

Reads the other's address, or an empty line, from standard input and prints its own. After the round it saves its
tensors to FILE and prints numpy's version. It leaves when standard input ends, after five minutes at the latest.
"""

import signal
import sys
from pathlib import Path

import hivemind
import numpy as np
import torch
from hivemind.compression import Float16Compression, SizeAdaptiveCompression, Uniform8BitQuantization

EIGHT_BIT_FROM = 2**16 + 1


def tensors(seed: int) -> list[torch.Tensor]:
    """Return the first tensors of the peer of that seed: a small one, one in several 8-bit parts, a small one."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in (700, 3 * 2**19 + 7, 1100)]


def codecs(name: str) -> SizeAdaptiveCompression:
    """Return hivemind's mixture of codecs, or ours, which this process then decodes with too."""
    if name == "stock":
        return SizeAdaptiveCompression(
            EIGHT_BIT_FROM, less=Float16Compression(), greater_equal=Uniform8BitQuantization()
        )
    from dalle_lib.swarm.averaging import codec

    codec.install()
    return codec.compression(EIGHT_BIT_FROM)


def main(name: str, seed: int, file: Path) -> None:
    """Average once with the other peer."""
    signal.alarm(300)
    compression = codecs(name)
    other = sys.stdin.readline().strip()
    dht = hivemind.DHT(start=True, initial_peers=other.split(), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    averager = hivemind.DecentralizedAverager(
        tensors(seed),
        dht,
        prefix="wire",
        target_group_size=2,
        min_matchmaking_time=2.0,
        request_timeout=1.0,
        compression=compression,
        start=True,
    )
    print(dht.get_visible_maddrs()[0], flush=True)
    averager.step(timeout=120)
    with averager.get_tensors() as averaged:
        torch.save([tensor.clone() for tensor in averaged], file)
    print(np.__version__, flush=True)
    sys.stdin.readline()
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
