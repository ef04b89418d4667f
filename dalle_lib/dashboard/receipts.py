"""What each of a volunteer's peers has given: signed receipts, checked, with how others check them."""

import logging
from html import escape
from pathlib import Path

from IPython.display import HTML

from dalle_lib.amounts import duration
from dalle_lib.dashboard.tables import sentence, table_html
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm import Crew, Peer
from dalle_lib.swarm.process.receipt import Receipt, confirmed, receipt_of
from dalle_lib.version import document

logger = logging.getLogger(__name__)

RECEIPTS = "receipts"
"""Folder of the receipts in that of a report, a file each peer."""
NO_RECEIPT = "No gradient of a peer here has counted in an average with others, so there is no receipt."


def write_receipts(crew: Crew, out: Path) -> list[Path]:
    """Write the receipt of each peer of `crew` whose gradients have counted, and return the files.

    Each holds what the run's monitor confirms, as far as that can be asked.
    """
    files = []
    for name, peer in crew.peers.items():
        if (receipt := receipt_if_any(peer)) is not None:
            files.append(out / RECEIPTS / f"{name}.json")
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            try:
                receipt = confirmed(receipt, peer)
            except (OSError, ValueError) as error:
                logger.warning("the run's monitor confirms nothing now: %s", in_one_line(error))
            receipt.save(files[-1])
    return files


def receipt_if_any(peer: Peer) -> Receipt | None:
    """Return the receipt of a peer, or None if nothing of it has counted, or it has ended before it had a key."""
    try:
        return receipt_of(peer)
    except (ValueError, FileNotFoundError):
        return None


def show_receipts(crew: Crew, out: str | Path) -> HTML:
    """Write the receipts of `crew` into the folder `out`, read them again, check them, and return what they say.

    Raises ValueError if a signature is false.
    """
    files = write_receipts(crew, Path(out))
    if not files:
        return sentence(NO_RECEIPT)
    receipts = [Receipt.load(file) for file in files]
    for receipt in receipts:
        receipt.check()
    rows = [
        [
            escape(receipt.name),
            f"{receipt.share:.1%}",
            f"{receipt.first_epoch:,} to {receipt.last_epoch:,}",
            f"{receipt.rounds:,}",
            f"{receipt.samples:,}",
            duration(receipt.seconds),
            f"✓ key of peer …{escape(receipt.peer_id[-6:])}",
            "nobody" if receipt.confirmation is None else f"the run's monitor: {receipt.confirmation.share:.1%}",
        ]
        for receipt in receipts
    ]
    header = ["peer", "its share", "of epochs", "averages", "samples", "time", "signature", "confirmed by"]
    how = (
        "The share is the mean over the averages in which the peer's gradients counted. A receipt proves that whoever "
        "holds the peer's key says this, and that nobody has changed it since. What the run's monitor confirms is its "
        "share of all that was averaged meanwhile. Anybody who has the file can check it, "
    )
    return HTML(
        f"{table_html(header, rows)}<p>{how}<a href='{document('receipts.md')}'>with a page</a> or by "
        f"<code>dalle-lib receipt --check {escape(str(files[-1]))}</code></p>"
    )
