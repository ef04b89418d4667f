"""The invitation to a run on the Hub: links, a code to scan, a line to type, a notebook with the run filled in."""

import json
import re
import shlex
from dataclasses import dataclass
from io import StringIO
from urllib.parse import quote

from dalle_lib.run import RunCard
from dalle_lib.run.files import EMBEDDED
from dalle_lib.swarm.process.settings import require_team

NOTEBOOK = "notebook.ipynb"
"""Its name in the run's repository: the Hub's own button for Colab opens the file of that name."""
MINUTES = 180.0
"""How long a peer takes part by default that starts from this notebook."""


@dataclass(frozen=True)
class Invitation:
    """What an organiser sends to volunteers. The links were never tried on the live Hub, Colab and Kaggle."""

    run: str
    """owner/name: all that a volunteer types."""
    page: str
    """The run's page on the Hub, which leads on to all other ways."""
    colab: str
    """Link that opens the notebook in Colab."""
    kaggle: str
    """Link that opens the notebook in Kaggle."""
    card: RunCard
    team: str = ""
    """The team that those who are invited join, if any."""

    @classmethod
    def to(cls, run: str, card: RunCard, team: str = "") -> "Invitation":
        """Return the invitation to a run, owner/name on the Hub. Raises ValueError if no team can be called so."""
        from huggingface_hub import constants

        require_team(team)
        page = f"{constants.ENDPOINT}/{run}"
        colab = f"https://colab.research.google.com/#fileId={quote(f'{page}/blob/main/{NOTEBOOK}')}"
        kaggle = f"https://kaggle.com/kernels/welcome?src={page}/resolve/main/{NOTEBOOK}"
        return cls(run, page, colab, kaggle, card, team)

    @property
    def line(self) -> str:
        """The line for a terminal."""
        team = ["--team", self.team] if self.team else []
        return shlex.join(["dalle-lib", "join", "--run", self.run, "--name", "YOUR-NAME", *team])

    def __str__(self) -> str:
        members = self.card.members
        told = [
            f"Run:      {self.run}, {self.card.state}",
            f"Page:     {self.page}",
            f"Kaggle:   {self.kaggle}",
            f"Colab:    {self.colab}",
            f"Terminal: {self.line}",
        ]
        if self.team:
            told.append(f"Team:     {self.team}; in the notebook, write it into TEAM")
        if self.card.message:
            told.insert(1, f"Says:     {self.card.message}")
        if members is not None and members.organization:
            told.append(f"Members:  of {members.organization}; to become one: {members.invitation or 'ask its admins'}")
        return "\n".join(told)

    def scanned(self) -> str:
        """Return the page's address as a QR code for a terminal."""
        drawn = StringIO()
        _code(self.page).terminal(drawn, compact=True)
        return drawn.getvalue().rstrip("\n")

    def svg(self) -> str:
        """Return the page's address as a QR code, black on white, as SVG for a page or a poster."""
        return _code(self.page).svg_inline(scale=8, light="white")

    def _repr_html_(self) -> str:
        from html import escape

        lines = f"<pre style='font-family:monospace;white-space:pre-wrap'>{escape(str(self))}</pre>"
        return f"<div>{self.svg()}</div>{lines}"


def notebook_for(run: str, team: str = "") -> bytes:
    """Return notebook 01 with a run, and a team if one is named, filled in, as Colab, Kaggle and Jupyter open it."""
    notebook = json.loads((EMBEDDED / "01_join_training.ipynb").read_text(encoding="utf-8"))
    (settings,) = (cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", []))
    source = "".join(settings["source"])
    for name, value in {"RUN": run, "TEAM": team}.items():
        filled_in = f"{name} = {json.dumps(value, ensure_ascii=False)}"
        source = re.sub(rf'^{name} = ".*?"', lambda _, text=filled_in: text, source, flags=re.M)
    source = re.sub(r"^MINUTES = [\d.]+", f"MINUTES = {MINUTES}", source, flags=re.M)
    settings["source"] = source.splitlines(True)
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def _code(text: str):
    import segno

    return segno.make(text, error="m", micro=False)
