"""The page that a user sees before the Hub's: which peer of which run they are about to let in."""

import time
from collections.abc import Mapping
from html import escape

CSP = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
_STYLE = "body{font:16px/1.5 sans-serif;max-width:36em;margin:2em auto;padding:0 1em}td{padding:.2em 1em .2em 0}"


def join_page(row: Mapping[str, object], code: str, url: str, proof_until: float) -> str:
    """Return the page of a device flow that is open, as HTML; an approval now counts until `proof_until`."""
    asked, until = (time.strftime("%H:%M:%S UTC on %Y-%m-%d", time.gmtime(at)) for at in (row["asked"], proof_until))
    facts = {"Run": row["run"], "Peer": row["name"], "Peer's id": row["peer"], "Machine": row["platform"] or "unknown"}
    facts |= {"Asked from": row["address"], "Asked at": asked, "Your approval counts until": until}
    lines = "".join(f"<tr><td>{name}</td><td><b>{escape(str(fact))}</b></td></tr>" for name, fact in facts.items())
    return _page(
        "Is this your peer?",
        f"<table>{lines}</table><p>Go on only if <b>you started this peer yourself, just now</b>. If somebody sent you "
        "this link or this code, close the page: their peer would take part in your name.</p>"
        f"<p>Your code: <b>{escape(code)}</b></p>"
        f'<p><a href="{escape(url)}" rel="noreferrer">It is mine: go on to Hugging Face</a></p>',
    )


def ended_page() -> str:
    """Return the page of a device flow that is over, or was never begun."""
    return _page("This link has ended", "<p>Start the peer again, and it shows a new one.</p>")


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><h1>{title}</h1>{body}</html>'
