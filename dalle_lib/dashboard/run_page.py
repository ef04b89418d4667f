"""The dashboard of a run as a page: the files of every copy of it, and a page of one run that opens as a file."""

import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from dalle_lib.dashboard.run_status import is_picture
from dalle_lib.files import BrokenFile, replace_file, small_bytes
from dalle_lib.monitor.published import HISTORY
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.model_page import PAGE_FOLDER, PROMPTS_FILE
from dalle_lib.run.newest import STATUS
from dalle_lib.swarm import Crew, LocalSwarm
from dalle_lib.swarm.process.local import MONITOR

logger = logging.getLogger(__name__)

DASHBOARD = "dashboard"
"""Folder of the page in that of a report."""
ASSETS = Path(__file__).parents[1] / "assets" / "dashboard"
PAGE, STYLE, CHARTS, DATA, VEGA = "index.html", "dashboard.css", "charts.js", "data.js", "vega.js"
SCRIPTS = (
    CHARTS, "text.js", "reading.js", "loading.js", "tables.js", "head.js", "plots.js", "pictures.js", "people.js",
    "you.js", "dashboard.js",
)  # fmt: skip
"""The scripts of every page with the dashboard, in the order in which they run. They load VEGA, which is beside them,
when the first chart comes into view."""
MAX_TOLD_BYTES = 12_000_000
"""Bytes of a file of the monitor's beyond which it is not read; the page refuses such a one, too."""
_NAMESPACE = "globalThis.dalle = globalThis.dalle || {};\n"


def page_files() -> dict[str, bytes]:
    """Return the files of every page with the dashboard, by their names: style, scripts, charts, and Vega.

    Where the packages that draw charts are not installed, there is no VEGA, and the page tells which they are.
    """
    told = {name: (ASSETS / name).read_bytes() for name in (STYLE, *SCRIPTS[1:])}
    if not (find_spec("vl_convert") and find_spec("altair")):
        return told | {CHARTS: f"{_NAMESPACE}dalle.charts = null;\n".encode()}
    import vl_convert

    from dalle_lib.dashboard.run_charts import chart_specs

    vega = f"(() => {{\n{vl_convert.javascript_bundle()}\n}})();\n"  # else its hundreds of short names are the page's
    return told | {CHARTS: _script("charts", chart_specs()), VEGA: vega.encode()}


def write_run_page(folder: Path, out: Path) -> Path:
    """Write a page of what the monitor in `folder` has told, with all that it shows, into `out`; return its file.

    It opens as a file, loads nothing from elsewhere, and shows the run as it was when the page was written. Pictures
    that an earlier page left in `out` are removed. Raises FileNotFoundError where the monitor has told nothing yet,
    and BrokenFile if what it has written cannot be read.
    """
    write_run_data(folder, out)
    for name, text in page_files().items():
        _write(out / name, text)
    scripts = "\n".join(f'<script defer src="{name}"></script>' for name in (DATA, *SCRIPTS))
    page = (ASSETS / PAGE).read_text(encoding="utf-8").replace("<!-- scripts -->", scripts)
    _write(out / PAGE, page.encode())
    return out / PAGE


def write_run_data(folder: Path, out: Path, base: str = "") -> None:
    """Write what the monitor in `folder` has told, as the script DATA, and the pictures that it names, into `out`.

    `base` is the address of `out` as seen from the page. Raises the errors of `write_run_page`.
    """
    status, history = _told(folder / STATUS), _told(folder / HISTORY, {})
    pictures = _pictures(history, folder)
    data = {
        "base": base,
        "status": status,
        "history": {**history, "pictures": pictures},
        "prompts": _told(folder / PAGE_FOLDER / PROMPTS_FILE, {}),
    }
    out.mkdir(parents=True, exist_ok=True)
    _write(out / DATA, _script("data", data))
    _copy(pictures, folder, out)


def write_own_page(crew: Crew, out: Path) -> Path | None:
    """Write the page of a swarm on this machine into the folder DASHBOARD of `out`, and return its file.

    What an earlier report left there is removed. None for peers in a run of others, which has a page of its own, and
    where the swarm's monitor has told nothing.
    """
    if not isinstance(crew, LocalSwarm):
        return None
    shutil.rmtree(out / DASHBOARD, ignore_errors=True)
    try:
        return write_run_page(crew.folder / MONITOR, out / DASHBOARD)
    except (FileNotFoundError, BrokenFile) as error:
        logger.warning("there is no dashboard: %s", in_one_line(error))
        return None


def _told(file: Path, default: dict | None = None) -> dict:
    """Return the JSON object in a file of a monitor's, with null for what is no number; `default` if it is not there.

    Without a default, raises FileNotFoundError then; BrokenFile in any case if the file cannot be read.
    """
    if not file.exists() and default is not None:
        return default
    try:
        text = small_bytes(file, MAX_TOLD_BYTES).decode()
        told = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
        if not isinstance(told, dict):
            raise ValueError(f"expected a JSON object, but it begins {text[:20]!r}")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {file}: the run's monitor has told nothing yet.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenFile(f"{file} cannot be read ({in_one_line(error)}). The run's monitor writes it anew.") from error
    return told


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def _pictures(history: Mapping, folder: Path) -> dict[str, list]:
    """Return the table of pictures of a history, as far as they are in the folder."""
    table = history.get("pictures")
    if not isinstance(table, dict) or not isinstance(epochs := table.get("epoch"), list):
        return {}
    columns = {"epoch": epochs}
    for kind in "first", "best":
        names = table.get(kind) if isinstance(table.get(kind), list) else []
        names = (names + [None] * len(epochs))[: len(epochs)]
        columns[kind] = [name if _is_picture(name, folder) else None for name in names]
    there = [at for at in range(len(epochs)) if columns["first"][at] or columns["best"][at]]
    return {name: [column[at] for at in there] for name, column in columns.items()}


def _is_picture(name: object, folder: Path) -> bool:
    """Return whether a name is that of a picture in the folder: a link out of it would copy a file of somebody else."""
    if not (isinstance(name, str) and is_picture(name) and (file := folder / name).is_file()):
        return False
    return file.resolve().is_relative_to(folder.resolve()) and file.stat().st_size <= MAX_TOLD_BYTES


def _names(pictures: Mapping[str, list]) -> Iterator[str]:
    for kind in "first", "best":
        yield from filter(None, pictures.get(kind, []))


def _copy(pictures: Mapping[str, list], folder: Path, out: Path) -> None:
    for place in {Path(name).parent for name in _names(pictures)}:
        shutil.rmtree(out / place, ignore_errors=True)
        (out / place).mkdir(parents=True)
    for name in _names(pictures):
        shutil.copyfile(folder / name, out / name)


def _script(name: str, value: object) -> bytes:
    """Return a script that sets `dalle.name`, from text to parse: a key such as __proto__ means more in a script."""
    text = json.dumps(json.dumps(value, allow_nan=False, separators=(",", ":")))
    return f"{_NAMESPACE}dalle.{name} = JSON.parse({text});\n".encode()


def _write(file: Path, data: bytes) -> None:
    with replace_file(file) as unfinished:
        unfinished.write_bytes(data)
