"""What the server tells Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dalle_lib.auth.server.database import Database


class Stored(Collector):
    """Figures that outlive the process: they are counted in the data base when somebody asks."""

    def __init__(self, database: Database, clock) -> None:
        self.database, self.clock = database, clock

    def collect(self) -> Iterator[Metric]:
        """Yield what is counted."""
        peers = GaugeMetricFamily("authority_peers", "Peers with a valid access token.", labels=["run"])
        query = "SELECT run, COUNT(*) AS count FROM peers WHERE expires > :now GROUP BY run"
        for row in self.database.rows(query, now=self.clock()):
            peers.add_metric([row["run"]], row["count"])
        yield peers
        bans = GaugeMetricFamily("authority_bans", "Bans in force.", labels=["kind"])
        for kind, names in self.database.banned().items():
            bans.add_metric([kind], len(names))
        yield bans
        refusals = CounterMetricFamily("authority_refusals", "Refusals by their cause.", labels=["run", "cause"])
        for row in self.database.rows("SELECT run, code, count FROM refusals"):
            refusals.add_metric([row["run"], row["code"]], row["count"])
        yield refusals


class Metrics:
    """The figures of one application."""

    def __init__(self, database: Database, clock) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Stored(database, clock))
        labels = ["method", "route", "status"]
        self.requests = Counter("authority_requests", "Requests.", labels, registry=self.registry)
        self.seconds = Histogram("authority_seconds", "Seconds to an answer.", ["route"], registry=self.registry)
