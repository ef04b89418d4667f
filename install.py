"""Install the kit from this folder into the running Python: add the packages that are missing, replace none.

The notebooks' install cells run this file. It needs nothing but the standard library and pip.
"""

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "dalle-lib"


def main() -> None:
    """Install this folder with all extras, and print the versions of the packages that matter.

    Raises RuntimeError with pip's own words if pip cannot do that, and also if this session has already imported
    another version of the kit and must be restarted.
    """
    was_in_use = "dalle_lib" in sys.modules
    print("This takes 1 to 3 minutes: 95 MB, and 3 GB more where there is no torch yet.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "installed.txt"
        constraints.write_text("".join(f"{line}\n" for line in installed()), encoding="utf-8")
        wanted = f"{PACKAGE}[all] @ {Path(__file__).resolve().parent.as_uri()}"
        done = pip("install", "--constraint", str(constraints), wanted)
    if done.returncode != 0:
        raise RuntimeError(
            f"{done.stdout}\n{done.stderr}\npip could not add the kit to the installed packages, and has changed none "
            f"of them; its reasons are above. Start a fresh session and try again. If that fails too, please report "
            f"the lines above."
        )
    if was_in_use:
        raise RuntimeError("installed, but this session uses another version: restart the kernel, then run all cells.")
    importlib.invalidate_caches()
    from dalle_lib.checks.report import versions

    print(versions().to_string())


def installed() -> list[str]:
    """Return `name==version` of every installed package except the kit itself, of which an older version may go."""
    lines = pip("list", "--format=freeze").stdout.splitlines()
    return [line for line in lines if "==" in line and not line.startswith(f"{PACKAGE}==")]


def pip(*arguments: str) -> subprocess.CompletedProcess:
    """Run this Python's pip with `arguments` to its end, and return its output and exit status."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    main()
