"""Settings of a peer that cannot be are refused before anything is started."""

import pytest
from test_addresses import OTHER

from dalle_lib.swarm import PeerSettings, take_part


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"duty": 0.0}, "duty must be above 0"),
        ({"name": " "}, "expected a name of 1 to 64 .* but got ' '"),
        ({"name": "a/b"}, "other than '/', .* but got 'a/b'"),
        ({"max_minutes": 0.0}, r"the minutes to take part must be above 0, but are 0\.0"),
        ({"max_minutes": float("nan")}, "but are nan"),
        ({"max_minutes": float("inf")}, "Leave them out for no limit"),
        ({"start_after_s": -1.0}, "the seconds before the start must be at least 0, but are -1"),
        ({"start_after_s": float("nan")}, "but are nan"),
        ({"start_after_s": float("inf")}, "but are inf"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 to 100,000, but is 0"),
        ({"batch_size": 10**9}, "but is 1000000000"),
        ({"threads": 10**6}, "threads must be a whole number from 1 to 1,024"),
        ({"port": -1}, "expected a port from 1 to 65535"),
        ({"name": "x" * 65}, "expected a name of 1 to 64"),
        ({"name": "ada\x1b[2J"}, "expected a name of 1 to 64"),
        ({"device": "tpu"}, 'expected a device such as "cpu"'),
        ({"announce": ("93.184.216.34:31337",)}, "'93.184.216.34:31337' cannot be announced: it has another form"),
        ({"announce": ("/ip4/93.184.216/tcp/31337",)}, "Expected 4 octets"),
        ({"announce": ("/ip4/93.184.216.34/tcp/0",)}, "there is no port 0"),
        ({"announce": ("/dnsaddr/home.example",)}, "names no port"),
        ({"announce": (f"/ip4/93.184.216.34/tcp/1/p2p/{OTHER}",)}, "it ends with a peer's id"),
        (
            {"announce": ("/dns4/home.example/tcp/31337",), "client_mode": True},
            "leave out either announce or client_mode",
        ),
    ],
)
def test_wrong_settings_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        PeerSettings(**{"run": "emoji-mini", **wrong})


@pytest.mark.parametrize(("name", "minutes", "told"), [("eve", 1.0, "another one than 'eve'"), ("me", -1.0, "minutes")])
def test_nothing_is_started_for_a_neighbours_name_or_without_minutes(tmp_path, name, minutes, told):
    with pytest.raises(ValueError, match=told):
        take_part("emoji-mini", name, minutes, tmp_path / "swarm")
    assert not (tmp_path / "swarm").exists()
