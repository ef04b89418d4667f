"""One thing that a message may be about."""

from dataclasses import dataclass
from typing import Literal

from dalle_lib.version import document

Severity = Literal["stops", "costs", "note"]
SEVERITIES: dict[Severity, str] = {
    "stops": "Whatever says this does not work until it is solved.",
    "costs": "It goes on, but time, work or a part of what it does is lost.",
    "note": "Nothing is lost; it is good to know.",
}
"""How bad a trouble is, in words."""
GAP = "..."
"""Stands in a pattern for what differs: names, numbers, addresses."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What messages of one kind mean, and what to do."""

    title: str
    """Its heading in docs/troubleshooting.md: letters, digits and spaces."""
    severity: Severity
    patterns: tuple[str, ...]
    """Parts of the messages, with GAP for what differs. A check's is `FAILED` or `note` before its subject."""
    means: str
    remedy: str

    @property
    def name(self) -> str:
        """The anchor of its heading, such as `slow-upload`."""
        return self.title.lower().replace(" ", "-")

    @property
    def link(self) -> str:
        """The address of its entry."""
        return f"{document('troubleshooting.md')}#{self.name}"

    def is_in(self, line: str) -> bool:
        """Return whether a line has one of the patterns, whose words are in their order and no others between them."""
        return any(_has(line, pattern) for pattern in self.patterns)


def _has(line: str, pattern: str) -> bool:
    # Each part as early as can be: no regular expression, which words of strangers could make slow.
    at = 0
    for part in pattern.split(GAP):
        if (found := line.find(part, at)) < 0:
            return False
        at = found + len(part)
    return True
