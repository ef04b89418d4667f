"""What a report must not show: access to accounts, other people's addresses, and the user's name."""

import re
from typing import NamedTuple


class Secret(NamedTuple):
    """One kind of secret, and what a report shows in its place."""

    pattern: str
    replacement: str
    example: str
    """A text with such a secret, which no other pattern would change."""
    shown: str
    """What is left of the example."""


SECRETS = (
    Secret(  # tokens of services that begin with the service's mark; a digit tells them from names such as hf_download
        pattern=r"(?i)\b(hf_|kgat_|gh[a-z]_|github_pat_|glpat-|api_org_)[a-z0-9_]*\d[a-z0-9_]{6,}",
        replacement="<token>",
        example="glpat-abc123def456",
        shown="<token>",
    ),
    Secret(  # Hub tokens without a digit
        pattern=r"\bhf_[A-Za-z]{30,}",
        replacement="<token>",
        example="hf_" + "Q" * 34,
        shown="<token>",
    ),
    Secret(  # HTTP headers
        pattern=r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(bearer|basic)?|bearer)\s+[^\s\"',;<]+",
        replacement=r"\1 <removed>",
        example="Authorization: Basic dXNlcjpwYXNzd29yZA",
        shown="Authorization: Basic <removed>",
    ),
    Secret(  # values that are named as secret: quoted ones, and long ones with a digit that are no path
        pattern=r"""(?xi) (?<![a-z])
            ( (?: access_ | api[_-]? | secret_? | private_? | hf_ )? (?: token | key | secret ) | passw(?:or)?d | pwd )
            ( ["']? \s* [=:] \s* )
            ( "[^"]{6,}" | '[^']{6,}' | (?![/\\]) (?= [^\s"',;()<]* \d ) [^\s"',;()<]{8,} )""",
        replacement=r"\1\2<removed>",
        example='{"api_key": "0123456789abcdef"}',
        shown='{"api_key": <removed>}',
    ),
    Secret(  # passwords of any kind
        pattern=r"(?i)(passw(?:or)?d|pwd)([\"']?\s*[=:]\s*)[^\s\"',;()<]{4,}",
        replacement=r"\1\2<removed>",
        example="passwd=hunter2",
        shown="passwd=<removed>",
    ),
    Secret(  # addresses that are signed so that whoever knows them may download
        pattern=r"(?i)([?&][\w-]*(?:signature|policy|credential|token|key-pair-id)=)[^&\s\"']+",
        replacement=r"\1<removed>",
        example="https://cas.example/x?X-Amz-Signature=abcdef012&part=2",
        shown="https://cas.example/x?X-Amz-Signature=<removed>&part=2",
    ),
    Secret(  # private keys, even if their end is missing
        pattern=r"-----BEGIN [A-Z ]+-----[\s\S]*?(-----END [A-Z ]+-----|\Z)",
        replacement="<key>",
        example="-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
        shown="<key>",
    ),
    Secret(  # JSON web tokens
        pattern=r"\beyJ[\w-]+\.[\w-]+\.[\w-]+",
        replacement="<token>",
        example="signed eyJhbGciOi.eyJzdWIiOi.SflKxwRJSM",
        shown="signed <token>",
    ),
    Secret(  # user and password in an address
        pattern=r"(\b[a-z][a-z0-9+]*://)[^/\s:@]*:[^/\s@]+@",
        replacement=r"\1<removed>@",
        example="git clone https://ada:s3cretpass@host.example/x",
        shown="git clone https://<removed>@host.example/x",
    ),
    Secret(  # peers' addresses, as libp2p and as Python write them
        pattern=r"(/ip4/)(?!127\.|0\.0)[\d.]+",
        replacement=r"\1<address>",
        example="/ip4/93.184.216.34/tcp/31337/p2p/Qm",
        shown="/ip4/<address>/tcp/31337/p2p/Qm",
    ),
    Secret(
        pattern=r"(/dns[46]?/|/dnsaddr/)[^/\s]+",
        replacement=r"\1<address>",
        example="/dns4/ada.example/tcp/1",
        shown="/dns4/<address>/tcp/1",
    ),
    Secret(
        pattern=r"\b(?!127\.|0\.0)\d{1,3}(\.\d{1,3}){3}(?=:\d)",
        replacement="<address>",
        example="peer 93.184.216.34:4242",
        shown="peer <address>:4242",
    ),
    Secret(
        pattern=r"/ip6/(?!::1/)[0-9a-fA-F:]+",
        replacement="/ip6/<address>",
        example="/ip6/2001:db8::8a2e:370:7334/tcp/1",
        shown="/ip6/<address>/tcp/1",
    ),
    Secret(
        pattern=r"\[(?!::1\])[0-9a-fA-F:]*:[0-9a-fA-F:]+\](?=:\d)",
        replacement="[<address>]",
        example="peer [2001:db8::1]:4242",
        shown="peer [<address>]:4242",
    ),
    Secret(  # the user's name in paths
        pattern=r"([\\/](?:home|Users)[\\/])[^\\/\s]+",
        replacement=r"\1<you>",
        example="C:\\Users\\lovelace\\peer",
        shown="C:\\Users\\<you>\\peer",
    ),
)
"""Later patterns see what earlier ones have left."""


def without_secrets(text: str, secrets: tuple[Secret, ...] = SECRETS) -> str:
    """Return `text` without tokens, keys, passwords, other people's addresses and the user's name in paths."""
    for secret in secrets:
        text = re.sub(secret.pattern, secret.replacement, text)
    return text
