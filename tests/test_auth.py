"""Access tokens, the authority that signs them, and the identities they are for."""

import itertools
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from auth_peers import AUTHORITY, RUN, identity, identity_file, issued
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hivemind.p2p import P2P, PeerID
from hivemind.proto import crypto_pb2

from dalle_lib.auth import AccessToken, Authority, Identity, Refused, Role
from dalle_lib.auth.authority import authority_key
from dalle_lib.peer_keys import check_key, key_bytes, peer_id_of

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
A_TOKEN = AccessToken("ada", Role.VOUCHED, RUN, b"key", NOON, b"signature")
GOLDEN_SIGNATURE = (
    "4454b550d822f0b7d1452d95b501545c630862eb587e9c713e418fd1e173f7e0"
    "6a4464351a47747f6db3265dd01a28a3ff2fa51d77399ed35f9c3b0e9dcb7d08"
)


def test_a_token_is_these_bytes():
    assert A_TOKEN.to_bytes() == (
        b"dalle-lib access token 2\n"
        b"\0\0\0\3ada\0\0\0\7vouched\0\0\0\7org/run\0\0\0\3key\0\0\0\x08\0\0\0\0\x6b\x01\x87\xc0"
        b"\0\0\0\0\0\0\0\x09signature"
    )
    assert A_TOKEN.to_bytes() == A_TOKEN.signed_bytes() + b"\0\0\0\x09signature"


def test_an_authority_signs_these_bytes_so():
    authority = Authority(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    key = rsa.RSAPublicNumbers(65537, 2**2047 + 1).public_key()
    data = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    token = authority.issue("ada", Role.MEMBER, RUN, data, timedelta(hours=2), now=NOON + timedelta(microseconds=7))
    assert token.expires == NOON + timedelta(hours=2)
    assert authority.public_key == "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
    assert token.signature.hex() == GOLDEN_SIGNATURE


def test_bytes_moved_between_fields_change_what_is_signed():
    users = runs = ["a", "ab", "b", "ba", "a_b"]
    keys = [b"", b"a", b"ab", b"\0\0\0\1a", b"member"]
    tokens = [
        AccessToken(user, role, run, key, NOON + timedelta(seconds=second))
        for user, role, run, key, second in itertools.product(users, Role, runs, keys, (0, 1))
    ]
    assert len({token.signed_bytes() for token in tokens}) == len(tokens)


def test_an_access_token_survives_its_bytes():
    ada = issued(identity("ada"), "Ada Lovelace, née Byron")
    for token in ada, A_TOKEN, replace(A_TOKEN, signature=b"", public_key=b""):
        assert AccessToken.from_bytes(token.to_bytes()) == token


def with_fields(*fields: bytes) -> bytes:
    return b"dalle-lib access token 2\n" + b"".join(len(field).to_bytes(4) + field for field in fields)


FIELDS = [b"ada", b"member", b"org/run", b"key", bytes(8), b"", b"signature"]


def test_the_fields_below_make_a_token():
    assert AccessToken.from_bytes(with_fields(*FIELDS)).user == "ada"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "expected an access token, but it is b''"),
        (b"hello", "but it is b'hello'"),
        (b"dalle-lib access token 1\n" + with_fields(*FIELDS)[25:], "another version"),
        (with_fields(*FIELDS) + b"\0", "followed by 1 bytes that do not belong to it"),
        (with_fields(*FIELDS[:6]), "ends within its field 7 of 7"),
        (with_fields(*FIELDS)[:-1], "ends within its field 7 of 7"),
        (with_fields(*FIELDS[:3])[:-3] + b"\xff\xff\xff\xff", "ends within its field"),
        (with_fields(b"x" * 5000, *FIELDS[1:]), "at most 4096 bytes"),
        (with_fields(b"\xff\xfe", *FIELDS[1:]), "utf-8"),
        (with_fields(b"", *FIELDS[1:]), "the user to be 1 to 200 printable characters"),
        (with_fields(b"ada\nbob", *FIELDS[1:]), r"not 'ada\\nbob'"),
        (with_fields(b"x" * 201, *FIELDS[1:]), "1 to 200 printable"),
        (with_fields(b"ada", b"king", *FIELDS[2:]), "'king' is not a valid Role"),
        (with_fields(*FIELDS[:2], b"\x00", *FIELDS[3:]), "the run to be 1 to 200 printable"),
        (with_fields(*FIELDS[:4], b"1234567", *FIELDS[5:]), "the time when an access token expires"),
        (with_fields(*FIELDS[:4], b"\xff" * 8, *FIELDS[5:]), "the time when an access token expires"),
        (
            with_fields(*FIELDS[:5], b"key", FIELDS[6]),
            "malformed: expected a delegation of an authority, but it is b'key'",
        ),
    ],
)
def test_bytes_that_are_no_access_token_are_refused_with_a_reason(data, reason):
    with pytest.raises(ValueError, match=reason):
        AccessToken.from_bytes(data)


def test_damaged_tokens_are_refused_or_no_longer_signed():
    token = issued(identity("ada"))
    whole = token.to_bytes()
    draw = random.Random(0)
    damaged = [whole[:size] for size in range(len(whole))]
    for _ in range(3000):
        bent = bytearray(whole)
        for _ in range(draw.choice((1, 1, 1, 4))):
            bent[draw.randrange(len(bent))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(bent))
    for data in set(damaged) - {whole}:
        with pytest.raises(ValueError):  # noqa: PT011  (each of the reasons will do)
            AccessToken.from_bytes(data).check(authority_key(AUTHORITY.public_key), RUN, datetime.now(UTC))


@pytest.mark.parametrize(
    "field",
    [
        {"expires": datetime(2026, 11, 21, 12)},
        {"expires": NOON.replace(microsecond=1)},
        {"expires": NOON.astimezone(datetime.strptime("+0100", "%z").tzinfo)},
        {"expires": datetime(1969, 12, 31, tzinfo=UTC)},
        {"user": ""},
        {"user": "a\u202eb"},
        {"run": "\ud800"},
    ],
)
def test_a_token_that_could_not_travel_cannot_be_made(field):
    with pytest.raises(ValueError, match="expected"):
        replace(A_TOKEN, **field)


def other_key(key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def in_pkcs1(public_key: bytes) -> bytes:
    """Return the same key in another encoding."""
    key = serialization.load_der_public_key(public_key)
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.PKCS1)


def test_a_good_token_is_good_until_the_second_it_expires():
    token = issued(identity("ada"))
    authority = authority_key(AUTHORITY.public_key)
    token.check(authority, RUN, token.expires - timedelta(microseconds=1))
    with pytest.raises(Refused, match="expired"):
        token.check(authority, RUN, token.expires)


def test_each_refusal_names_its_reason_and_what_to_do():
    ada = identity("ada")
    good = issued(ada)
    later = good.expires + timedelta(minutes=10)
    own = authority_key(AUTHORITY.public_key)
    for token, now, reason in [
        (issued(ada, authority=Authority.generate()), NOON, "not signed by the authority of 'org/run'.*Ask for one"),
        (replace(good, role=Role.VOUCHED), NOON, "or was altered"),
        (replace(good, signature=b""), NOON, "not signed"),
        (issued(ada, run="org/other"), NOON, "is for the run 'org/other', not for 'org/run'"),
        (good, later, r"expired 0:10:00 \(h:mm:ss\) ago: ask for a new one. If it is new, this computer's clock"),
    ]:
        with pytest.raises(Refused, match=reason):
            token.check(own, RUN, now)


def test_keys_that_no_peer_has_are_refused():
    good = identity("ada").public_key
    for key, reason in [
        (b"nonsense", "cannot be read"),
        (b"", "cannot be read"),
        (good + b"\0", "cannot be read"),
        (in_pkcs1(good), "not in canonical DER"),
        (other_key(rsa.generate_private_key(65537, 1024)), "2048 to 4096 bits, but it is RSA of 1024 bits"),
        (other_key(ed25519.Ed25519PrivateKey.generate()), "but it is Ed25519PublicKey"),
        (other_key(ec.generate_private_key(ec.SECP256R1())), "but it is EC"),
    ]:
        with pytest.raises(Refused, match=reason):
            AUTHORITY.issue("ada", Role.MEMBER, RUN, key, timedelta(hours=1))
        token = AccessToken("ada", Role.MEMBER, RUN, key, NOON)
        signed = token.signed(AUTHORITY._key.sign(token.signed_bytes()))
        with pytest.raises(Refused, match=reason):
            signed.check(authority_key(AUTHORITY.public_key), RUN, NOON - timedelta(hours=1))


def test_an_authority_is_kept_in_a_file_of_its_own(tmp_path):
    file = tmp_path / "authority.pem"
    AUTHORITY.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert Authority.load(file).public_key == AUTHORITY.public_key
    with pytest.raises(ValueError, match="only copy"):
        AUTHORITY.save(file)
    file.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        Authority.load(file)


def test_what_holds_no_authority_is_refused(tmp_path):
    file = tmp_path / "authority.pem"
    rsa_key = rsa.generate_private_key(65537, 1024)
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    for data, reason in [
        (b"", "in PEM"),
        (rsa_key.private_bytes(*formats, serialization.NoEncryption()), "Ed25519 key, but it is RSA"),
        (rsa_key.private_bytes(*formats, serialization.BestAvailableEncryption(b"secret")), "in PEM"),
    ]:
        file.write_bytes(data)
        file.chmod(0o600)
        with pytest.raises(ValueError, match=reason):
            Authority.load(file)
    for text in "", "abc", AUTHORITY.public_key[:-4], "ä" * 44:
        with pytest.raises(ValueError, match="32 bytes in base64"):
            authority_key(text)


def test_private_keys_appear_in_no_text(tmp_path):
    AUTHORITY.save(tmp_path / "key")
    secret = (tmp_path / "key").read_text().splitlines()[1]
    shown = f"{AUTHORITY!r} {AUTHORITY} {identity('ada')!r} {vars(identity('ada'))}"
    assert AUTHORITY.public_key in shown
    assert secret not in shown
    assert "PRIVATE" not in shown.upper().replace("PRIVATE_KEY'", "").replace("RSAPRIVATEKEY", "")


def test_an_identity_is_the_id_of_the_peer_that_has_its_file(tmp_path):
    P2P.generate_identity(str(tmp_path / "theirs"))
    for file in tmp_path / "theirs", identity_file("ada"):
        identity = Identity.load_or_create(file)
        theirs = PeerID.from_identity(file.read_bytes())
        assert identity.peer_id == str(theirs) == peer_id_of(identity.public_key)
        assert Identity.load_or_create(file).public_key == identity.public_key
        signature = identity.private_key.sign(b"words")
        assert identity.private_key.get_public_key().verify(b"words", signature)


def as_identity(key: rsa.RSAPrivateKey) -> bytes:
    """Return the bytes of the identity file that hivemind keeps of this key."""
    data = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return crypto_pb2.PrivateKey(key_type=crypto_pb2.RSA, data=data).SerializeToString()


def test_longer_keys_have_the_ids_of_hivemind_too(tmp_path):
    key = as_identity(rsa.generate_private_key(65537, 3072))
    (tmp_path / "identity").write_bytes(key)
    assert Identity.load_or_create(tmp_path / "identity").peer_id == str(PeerID.from_identity(key))


def test_a_key_that_takes_long_to_check_is_refused():
    modulus = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n
    for exponent in 3, 2**1024 + 1:
        with pytest.raises(Refused, match="exponent"):
            check_key(key_bytes(rsa.RSAPublicNumbers(exponent, modulus).public_key()))


def test_an_identity_is_made_once_and_for_its_owner_alone(tmp_path, caplog):
    file = tmp_path / "new folder" / "identity"
    made = Identity.load_or_create(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["identity"]
    assert Identity.load_or_create(file).peer_id == made.peer_id
    assert not caplog.records
    file.chmod(0o644)
    Identity.load_or_create(file)
    assert "chmod 600" in caplog.text


def test_a_file_that_holds_no_identity_is_left_alone(tmp_path):
    weak, good = (as_identity(rsa.generate_private_key(65537, bits)) for bits in (1024, 2048))
    padded = good + b"\x1a\x80\x80\x04" + bytes(2**16)  # a field that nobody reads
    for data in b"", b"nonsense", b"\x08\0\x12\3abc", b"\x08\0\x12\0", weak, padded:
        (tmp_path / "identity").write_bytes(data)
        with pytest.raises(ValueError, match=r"[Mm]ove .* away"):
            Identity.load_or_create(tmp_path / "identity")
        assert (tmp_path / "identity").read_bytes() == data


def test_access_tokens_need_no_hivemind():
    code = (
        "import sys; from dalle_lib.auth import AccessToken, Authority, Refused, Role; Authority.generate();"
        "heavy = {'hivemind', 'torch', 'google.protobuf'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
