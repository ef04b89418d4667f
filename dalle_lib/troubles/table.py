"""All troubles, by topic, and which of them a message is about."""

from dalle_lib.one_line import told
from dalle_lib.troubles import averaging, data, disk, joining, machine, members, monitoring, network
from dalle_lib.troubles.trouble import Trouble

TOPICS: dict[str, tuple[Trouble, ...]] = {
    "Before a peer joins": joining.TROUBLES,
    "Runs for members": members.TROUBLES,
    "The data": data.TROUBLES,
    "The network": network.TROUBLES,
    "The disk": disk.TROUBLES,
    "This machine": machine.TROUBLES,
    "Training with the others": averaging.TROUBLES,
    "For organisers: monitor, first peer, authority": monitoring.TROUBLES,
}
"""Where a message holds another one, as its reason, the topic that comes first has its entry."""
TROUBLES = tuple(trouble for topic in TOPICS.values() for trouble in topic)


def trouble_in(message: str) -> Trouble | None:
    """Return what a message is about, by the first pattern that is in it; None for one without an entry.

    The message may be in lines of any width, as a terminal shows it; of a long one the beginning counts.
    """
    line = told(message)
    return next((trouble for trouble in TROUBLES if trouble.is_in(line)), None)
