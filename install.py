"""Install the kit from this folder into the running Python: add what is missing, replace nothing that is there.

The notebooks' install cells run it. It needs the standard library and pip alone.
"""

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "dalle-lib"


def main() -> None:
    """Install this folder with all extras, and print the versions that matter.

    Raises RuntimeError after pip's own words if that cannot be done, and if the session must be started anew because
    it uses another version of the kit already.
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
            f"{done.stdout}\n{done.stderr}\npip could not add the kit to what is here; its reasons are above, and "
            f"nothing that was here has changed. Start a fresh session and try once more; if that fails too, please "
            f"report the lines above."
        )
    if was_in_use:
        raise RuntimeError("installed, but another version is in use: restart the kernel, then run all cells again.")
    importlib.invalidate_caches()
    from dalle_lib.checks.report import versions

    print(versions().to_string())


def installed() -> list[str]:
    """Return `name==version` of every package that is here, but for an older version of the kit itself."""
    lines = pip("list", "--format=freeze").stdout.splitlines()
    return [line for line in lines if "==" in line and not line.startswith(f"{PACKAGE}==")]


def pip(*arguments: str) -> subprocess.CompletedProcess:
    """Run this Python's pip to its end."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    main()
