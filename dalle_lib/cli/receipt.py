"""`dalle-lib receipt`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.swarm.process.folder import PEERS


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Sign what each of your peers has given, for others to check.

    A receipt is a file, signed by the peer's key. For example, all of those in a folder, and the check of one:

    dalle-lib receipt

    dalle-lib receipt --folder peers/owner--name/ada --out receipts

    dalle-lib receipt --check receipts/ada.json
    """

    folder: Path = PEERS
    """A peer's folder, or a folder in which peers were started."""
    out: Path | None = None
    """Folder for the receipts, a file each; without it, each lies in its peer's folder as receipt.json."""
    check: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Check this receipt, and write none."""

    def run(self) -> None:
        """Print each receipt in words, and where it is. Raises ValueError for a false one, or if no peer has given."""
        from dalle_lib.swarm import Peer
        from dalle_lib.swarm.process import receipt
        from dalle_lib.swarm.process.folder import folders_of_peers

        if self.check is not None:
            checked = receipt.Receipt.load(self.check)
            checked.check()
            print(f"{checked}\nSigned by the key of peer {checked.peer_id}.")
            return
        problems, count = [], 0
        for folder in folders_of_peers(self.folder):
            try:
                made = receipt.receipt_of(Peer(folder))
            except ValueError as error:
                problems.append(str(error))
                continue
            file = folder / "receipt.json" if self.out is None else self.out / f"{folder.name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            made.save(file)
            count += 1
            print(f"{made}\n  {file}")
        if count == 0:
            raise ValueError(problems[0] if problems else f"expected a peer in {self.folder}, but none has run there.")
