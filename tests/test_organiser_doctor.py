"""dalle-lib doctor --organiser: a certificate that is none, a proxy without time limits, keys that end, addresses."""

import contextlib
import ipaddress
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from served_authority import ServedAuthority

from dalle_lib.auth import Authority
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server import ServerSettings
from dalle_lib.checks import organiser as organisers
from dalle_lib.checks import serving
from dalle_lib.checks.organiser import hidden_by, kind_of, organiser_checks
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer.dry_run import Findings
from dalle_lib.swarm.process import addresses
from dalle_lib.swarm.process.folder import IDENTITY


def rows(checks) -> dict:
    return {check.what: check for check in checks}


class Proxy:
    """Speaks TLS by a certificate of its own for `name`, and ends connections at once unless it `is_patient`."""

    def __init__(self, folder, name="localhost", days=90.0, is_patient=False) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        begin = datetime.now(UTC) - timedelta(days=100)
        made = x509.CertificateBuilder().subject_name(called).issuer_name(called).public_key(key.public_key())
        made = made.serial_number(7).not_valid_before(begin).not_valid_after(datetime.now(UTC) + timedelta(days=days))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        self.file, private = folder / f"{name}-{days}.pem", folder / "private.pem"
        self.file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        kind = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        private.write_bytes(key.private_bytes(*kind))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, private)
        self.listening, self.is_patient, self.held = socket.create_server(("127.0.0.1", 0)), is_patient, []
        self.address = f"https://localhost:{self.listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self._accept, args=(context,))
        self.thread.start()

    def _accept(self, context) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self.listening.accept()[0]
                try:
                    connection = context.wrap_socket(connection, server_side=True)
                except OSError:  # the other side did not like the certificate
                    continue
                if self.is_patient:
                    self.held.append(connection)
                else:
                    connection.recv(1000)
                    connection.close()

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for connection in self.held:
            connection.close()
        self.thread.join()


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    """Return a function that starts a proxy whose certificate this process trusts."""
    started = []

    def start(trusted=True, **settings) -> Proxy:
        started.append(Proxy(tmp_path, **settings))
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(started[-1].file))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_certificate_is_told_by_its_days_and_a_proxy_that_ends_connections_passes(proxy):
    found = rows(serving._address(proxy(days=40.0).address))
    assert found["certificate"].ok
    assert "valid for localhost, 40.0 days more" in found["certificate"].here
    assert found["time limits"].ok


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"days": 3.0}, "3.0 days more"),
        ({"days": -1.0}, "expired"),
        ({"name": "example.org"}, "mismatch"),
        ({"trusted": False}, "self-signed"),
    ],
)
def test_a_certificate_that_volunteers_would_refuse_soon_or_now_fails(proxy, settings, said):
    check = rows(serving._address(proxy(**settings).address))["certificate"]
    assert not check.ok
    assert said in check.here
    assert "ports 80 and 443" in check.remedy


def test_a_proxy_that_waits_for_headers_without_end_fails(proxy, monkeypatch):
    monkeypatch.setattr(serving, "MAX_SILENCE_S", 0.3)
    check = rows(serving._address(proxy(is_patient=True).address))["time limits"]
    assert not check.ok
    assert "deploy/Caddyfile" in check.remedy


def test_an_address_without_a_proxy_or_without_tls_fails():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    check = rows(serving._address(f"https://localhost:{port}"))["certificate"]
    assert (check.ok, f"open TCP port {port}" in check.remedy) == (False, True)
    assert not rows(serving._address("http://example.org"))["certificate"].ok


@pytest.fixture
def served(tmp_path, hub, mini):
    authority = ServedAuthority(tmp_path / "keys" / "authority", hub, mini)
    yield authority
    authority.stop()


def test_an_authority_that_serves_the_cards_run_passes_and_another_does_not(served):
    found = rows(serving.authority_checks(served.card, served.place.path))
    assert [name for name, check in found.items() if not check.ok] == []
    assert found["run it serves"].here == "club, as its card"
    other = served.card.members.model_copy(update={"authority": Authority.generate().public_key})
    assert not rows(serving.authority_checks(served.card.with_changes(members=other), None))["run it serves"].ok
    paused = rows(serving.authority_checks(served.card.with_changes(state="paused"), None))["run it serves"]
    assert (paused.ok, "another state" in paused.here) == (True, True)
    unknown = rows(serving.authority_checks(served.card.with_changes(name="other"), None))["run it serves"]
    assert (unknown.ok, unknown.here) == (False, "status 404")
    with served.away():
        assert not rows(serving.authority_checks(served.card, None))["authority"].ok


def test_keys_that_end_soon_and_the_root_key_in_their_place_fail(served):
    file, card = served.place.key("club"), served.card
    served.root.delegate("club", timedelta(days=2)).save(file)
    assert serving._signing_key(card, served.place.path).here == "2 days more"
    assert "rotate --root root.pem" in serving._signing_key(card, served.place.path).remedy
    file.unlink()
    assert not serving._signing_key(card, served.place.path).ok
    Authority.generate().save(file)
    assert "offline" in serving._signing_key(card, served.place.path).remedy
    assert not serving._settings("https://example.org", served.place.path).ok
    served.place.save(ServerSettings(proxies=1))
    assert serving._settings("https://example.org", served.place.path).ok


def test_a_run_without_an_authority_or_its_server_needs_none(mini):
    assert rows(serving.authority_checks(mini, None))["authority"].ok
    members = {"authority": Authority.generate().public_key}
    assert "run token" in rows(serving.authority_checks(mini.with_changes(members=members), None))["authority"].here


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("100.64.0.7", "shared by a provider's customers (CGNAT)"),
        ("192.168.1.7", "of a private network"),
        ("127.0.0.1", "this machine's own"),
        ("fd00::7", "of a private network"),
        ("93.184.216.34", None),
        ("2606:2800:220:1::7", None),
    ],
)
def test_what_hides_an_address_is_told(address, kind):
    assert kind_of(ipaddress.ip_address(address)) == kind
    assert hidden_by(address) == ([] if kind is None else [kind])


def test_the_address_in_the_card_is_held_against_the_first_peers_key_and_port(mini, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(organisers, "_tried", lambda *_: Findings(codecs=None, p2pd=None, first_peers={}))
    monkeypatch.setattr(addresses, "ANSWER_S", 0.5)  # nobody answers at these public addresses
    key = PeerKey.load_or_create(tmp_path / "keys/peers/emoji-mini/first-peer" / IDENTITY)

    def address(**changes):
        run = str(mini.with_changes(**changes).save(tmp_path / "run"))
        settings = PeerSettings(run=run, port=31337)
        return rows(organiser_checks(settings, tmp_path / "keys"))["address"]

    other = "/ip4/93.184.216.34/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
    typed = address(initial_peers=(other,)).remedy.replace("ADDRESS", "1.2.3.4").split()
    subprocess.run([sys.executable, "-m", "dalle_lib", *typed[1:]], check=True, timeout=120)
    assert RunCard.load(tmp_path / "run").initial_peers == (f"/ip4/1.2.3.4/tcp/31337/p2p/{key.peer_id}", other)
    assert address(initial_peers=(f"/ip4/93.184.216.34/tcp/31337/p2p/{key.peer_id}",)).ok
    assert "--port 7" in address(initial_peers=(f"/ip4/93.184.216.34/tcp/7/p2p/{key.peer_id}",)).remedy
    assert address(initial_peers=(f"/dnsaddr/example.org/p2p/{key.peer_id}",)).ok
    carried = address(initial_peers=(f"/ip4/100.70.1.1/tcp/31337/p2p/{key.peer_id}",))
    assert (carried.ok, "CGNAT" in carried.here) == (False, True)
    assert not address(initial_peers=(f"/dns4/nowhere.invalid/tcp/31337/p2p/{key.peer_id}",)).ok


def test_whether_others_reach_the_port_is_told_as_far_as_it_is_known():
    settings = PeerSettings(run="emoji-mini", port=31337, role="bootstrap")

    def port(**found):
        return rows(organisers._from_outside(Findings(codecs=None, first_peers={}, p2pd=None, **found), settings))[
            "port"
        ]

    assert port(reached=31337).ok
    assert not port(reached=0).ok
    assert "TCP port 31337" in port(reached=0).remedy
    private = port(addresses=("/ip4/127.0.0.1/tcp/31337", "/ip4/10.1.2.3/tcp/31337"))
    assert (private.ok, "of a private network" in private.here) == (True, True)
    assert "--initial-peers" in private.remedy
    assert "it has a public address" in port(addresses=("/ip4/93.184.216.34/tcp/31337",)).here


def test_a_first_peer_that_answers_is_not_tried_again(mini, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(organisers, "trial", lambda *_: pytest.fail("it would ask for the port of the first peer"))
    key = PeerKey.load_or_create(tmp_path / "keys/peers/emoji-mini/first-peer" / IDENTITY)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def greet() -> None:
            with listening.accept()[0] as caller:
                caller.sendall(b"\x13/multistream/1.0.0\n")

        greeting = threading.Thread(target=greet)
        greeting.start()
        card = mini.with_changes(initial_peers=(f"/ip4/127.0.0.1/tcp/{port}/p2p/{key.peer_id}",))
        settings = PeerSettings(run=str(card.save(tmp_path / "run")), port=port)
        found = rows(organiser_checks(settings, tmp_path / "keys"))
        greeting.join()
    assert found["port"].here == "the first peer answers at its address"
    assert not found["address"].ok, "it is this machine's own"


def test_few_open_files_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(organisers.resource, "getrlimit", lambda _: (1024, 8192))
    raised = rows(organisers._machine(tmp_path))["open files"]
    assert (raised.ok, "ulimit -n 65536" in raised.remedy) == (True, True)
    monkeypatch.setattr(organisers.resource, "getrlimit", lambda _: (1024, 1024))
    assert not rows(organisers._machine(tmp_path))["open files"].ok


@pytest.mark.peers
def test_the_command_tells_all_rows_with_a_trial_of_its_own(served, tmp_path, hub):
    run = str(served.card.save(tmp_path / "run"))
    command = [sys.executable, "-m", "dalle_lib", "doctor", "--organiser", "--run", run, "--host", "127.0.0.1"]
    done = subprocess.run([*command, "--keys", str(tmp_path / "keys")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "can serve" in done.stderr
    for what in "free memory", "open files", "p2pd", "port", "clock", "authority", "run it serves", "signing key":
        assert f"  {what}  " in done.stdout
    wrong = subprocess.run([*command[:5], "--keys", "nowhere"], capture_output=True, text=True, timeout=300)
    assert (wrong.returncode, "a folder of keys" in wrong.stderr) == (2, True)
