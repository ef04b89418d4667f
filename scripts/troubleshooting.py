"""Write docs/troubleshooting.md from the kit's table of troubles: `python scripts/troubleshooting.py`.

Run it after a change in dalle_lib/troubles.
"""

from pathlib import Path

from dalle_lib.troubles import SEVERITIES, TOPICS, Trouble

FILE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
HEAD = """\
# Troubleshooting: what a message means, and what to do

Search this page for some words of your message. `...` stands for what differs: names, numbers, addresses. `FAILED` and
`note` stand before the checks of `dalle-lib doctor`. A message may hold another one, as its reason: then look that one
up, too. `dalle-lib status`, the live panel and the block of `dalle-lib doctor` link to the entry.

How bad it is:

{severities}

If nothing here helps, `dalle-lib doctor --folder PEER`, with the peer's folder, prints a block to copy into an issue,
without secrets. For everything from the first check to the receipt, see [joining.md](joining.md).
"""


def page() -> str:
    """Return the whole page."""
    severities = "\n".join(f"- **{name}**: {told}" for name, told in SEVERITIES.items())
    index = []
    for topic, troubles in TOPICS.items():
        index.append(f"- {topic}: {', '.join(f'[{each.title}](#{each.name})' for each in troubles)}")
    parts = [HEAD.format(severities=severities), "\n".join(index) + "\n"]
    for topic, troubles in TOPICS.items():
        parts += [f"## {topic}\n", *map(entry, troubles)]
    return "\n".join(parts)


def entry(trouble: Trouble) -> str:
    """Return the part of the page about one trouble."""
    patterns = "\n".join(f"- `{pattern.strip()}`" for pattern in trouble.patterns)
    return (
        f"### {trouble.title}\n\n{patterns}\n\n"
        f"**{trouble.severity}** · {trouble.means}\n\n**What to do:** {trouble.remedy}\n"
    )


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
