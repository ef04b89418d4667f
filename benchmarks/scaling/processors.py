"""What peers compute besides samples: each on a core of its own, or all on a few that they share, as on one machine."""

import simpy


class Processors:
    """The cores on which peers answer, check and encode; one thing after another on each."""

    def __init__(self, env: simpy.Environment, peers: int, shared_cores: int | None = None) -> None:
        """Take how many cores all peers share; None gives each peer one."""
        self.env, self.used_s = env, [0.0] * peers
        self._shared = None if shared_cores is None else simpy.Resource(env, shared_cores)
        self._own = [] if self._shared else [simpy.Resource(env) for _ in range(peers)]

    def work(self, peer: int, seconds: float):
        """Compute for a peer for so many seconds: a process, which waits for its turn first."""
        self.used_s[peer] += seconds
        cores = self._shared or self._own[peer]
        with cores.request() as turn:
            yield turn
            yield self.env.timeout(seconds)
