"""Until when a volunteer's last proof of identity counts, as their run's authority told it, in a file of the peer."""

from pathlib import Path

from dalle_lib.files import replace_file, small_text

PROOF = "proof_until"
"""Name of the file in a peer's folder: seconds since 1970. Nothing follows from it but what the volunteer is told."""


def note_proof(folder: Path, until: float | None) -> None:
    """Write that time into a peer's folder; None where nobody has to prove anything, or the authority does not say."""
    if until is None:
        (folder / PROOF).unlink(missing_ok=True)
        return
    with replace_file(folder / PROOF) as unfinished:
        unfinished.write_text(f"{until:.0f}\n", encoding="utf-8")


def proof_until(folder: Path) -> float | None:
    """Return that time; None where the folder does not say."""
    try:
        until = int(small_text(folder / PROOF))
    except (OSError, ValueError):
        return None
    return float(until) if 0 <= until < 2**40 else None
