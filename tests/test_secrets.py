"""What reports do not show."""

import pytest

from dalle_lib.checks.secrets import SECRETS, without_secrets

TOKEN = "hf_" + "Q" * 34


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret.example)
def test_each_pattern_removes_its_example_and_no_other_does(secret):
    text = f"before {secret.example} after"
    assert without_secrets(text) == f"before {secret.shown} after"
    others = tuple(other for other in SECRETS if other is not secret)
    assert without_secrets(text, others) == text


ORDINARY = (
    "loss 3.14 at 127.0.0.1:4242 of /ip4/127.0.0.1/tcp/1, 512 tokens a sample, key emoji-mini-0f, torch 2.14.1",
    "Linux-5.15.167.4-microsoft-standard-WSL2-x86_64, cudnn 9.10.2.21, loss per token: 3.14159",
    "in hf_hub_download, in hf_raise_for_status: monkey: banana123, sort(key=operator.itemgetter(1)), token=None",
    "key: /usr/lib/python3.13/site-packages/x.py, expected SHA-256 0f0f0f0f0f0f0f0f0f0f0f0f",
)
HIDDEN = {
    "KAGGLE_API_TOKEN=kgat_0123456789abcdef": "0123456789abcdef",
    "KGAT_0123456789abcdef": "0123456789abcdef",
    'password="two words, here"': "two words",
    "https://cas.example/x?X-Amz-Signature=abcdef012&Policy=eyJxyz": "abcdef012",
    "socks5://u:passwd1@proxy.example": "passwd1",
    f"token = {TOKEN}": TOKEN,
    f"Authorization: Bearer {TOKEN[3:]}": TOKEN[3:],
    "password: correct-horse-battery": "correct-horse-battery",
    "connected to /ip4/93.184.216.34/tcp/31337/p2p/Qm": "93.184.216.34",
    "and /ip6/2001:db8::8a2e:370:7334/tcp/1": "2001:db8",
    'File "/home/ada.lovelace/peer/x.py"': "ada.lovelace",
}


@pytest.mark.parametrize(("text", "secret"), HIDDEN.items())
def test_secrets_stay_out_of_reports(text, secret):
    assert secret not in without_secrets(f"before {text} after")
    assert "before " in without_secrets(f"before {text}")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_lines_stay_as_they_are(text):
    assert without_secrets(text) == text
