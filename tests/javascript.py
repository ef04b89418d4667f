"""JavaScript of the site without a browser: run by the Node that Playwright brings."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import playwright

NODE = Path(playwright.__file__).parent / "driver" / "node"
RUNNER = """
const fs = require("fs"), vm = require("vm");
globalThis.window = globalThis;
const { files, code, given } = JSON.parse(fs.readFileSync(0, "utf8"));
for (const file of files) vm.runInThisContext(fs.readFileSync(file, "utf8"), { filename: file });
process.stdout.write(JSON.stringify(vm.runInThisContext("(" + code + ")")(given)));
"""


def run_javascript(files: Sequence[Path], code: str, given: object = None, timeout_s: float = 300) -> object:
    """Return what the function `code` gives for `given`, both as JSON, after these scripts have run."""
    told = json.dumps({"files": list(map(str, files)), "code": code, "given": given})
    done = subprocess.run([NODE, "-e", RUNNER], input=told, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
