"""`dalle-lib receipt`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.swarm.process.folder import PEERS
from dalle_lib.version import document

if TYPE_CHECKING:
    from dalle_lib.swarm import Peer
    from dalle_lib.swarm.process.receipt import Receipt as Signed


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Sign what each of your peers has given.

    A receipt is a file for others to check, signed by the peer's key; where the run has a monitor, it holds what that
    confirms, too. For example, all of those in a folder, and the check of one, by the monitors that the run's card
    names:

    dalle-lib receipt

    dalle-lib receipt --folder peers/owner--name/ada --out receipts

    dalle-lib receipt --check receipts/ada.json --run owner/name
    """

    folder: Path = PEERS
    """A peer's folder, or a folder in which peers were started."""
    out: Path | None = None
    """Folder for the receipts, a file each; without it, each lies in its peer's folder as receipt.json."""
    check: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Check this receipt, and write none."""
    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """The run whose card names the monitors that may confirm what is checked: a folder, or owner/name on the Hub."""

    def run(self) -> None:
        """Print each receipt in words, and where it is. Raises ValueError for a false one, or if no peer has given."""
        from dalle_lib.swarm import Peer
        from dalle_lib.swarm.process import receipt
        from dalle_lib.swarm.process.folder import folders_of_peers

        if self.check is not None:
            checked = receipt.Receipt.load(self.check)
            checked.check(() if self.run_name is None else self._monitors())
            print(f"{checked}\nSigned by the key of peer {checked.peer_id}.")
            if checked.confirmation is None:
                print("Nobody has confirmed it: it is the peer's own word.")
            elif self.run_name is None:
                print("Whether the run's monitor has confirmed it, its card tells: check it with --run.")
            return
        problems, count = [], 0
        for folder in folders_of_peers(self.folder):
            try:
                peer = Peer(folder)
                made = self._confirmed(receipt.receipt_of(peer), peer)
            except ValueError as error:
                problems.append(str(error))
                continue
            file = folder / "receipt.json" if self.out is None else self.out / f"{folder.name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            made.save(file)
            count += 1
            print(f"{made}\n  {file}")
        if count:
            print(f"Anybody can check one: {document('receipts.md')}")
        if count == 0:
            raise ValueError(problems[0] if problems else f"expected a peer in {self.folder}, but none has run there.")

    def _monitors(self) -> tuple[str, ...]:
        from dalle_lib.run import RunCard, hub_token_for

        card = RunCard.load(self.run_name, hub_token_for(self.run_name))
        if not card.monitors:
            raise ValueError(
                f"expected a run whose card names its monitors, but that of {self.run_name} names none: check the "
                "receipt without --run, or ask the organiser for `dalle-lib run edit --monitors`."
            )
        return card.monitors

    def _confirmed(self, made: "Signed", peer: "Peer") -> "Signed":
        from dalle_lib.one_line import in_one_line
        from dalle_lib.swarm.process.receipt import confirmed

        try:
            return confirmed(made, peer)
        except (OSError, ValueError) as error:
            print(f"The run's monitor confirms nothing now: {in_one_line(error)}")
            return made
