"""Makes the kit's functions check types and shapes of what they get and return, while tests run.

`dalle_lib.memory` is left out: it has no tensors, and an estimate makes hundreds of thousands of calls, which took 15
times as long with checks. Import this before anything of the kit.
"""

import pkgutil
from pathlib import Path

from jaxtyping import install_import_hook

PACKAGE = Path(__file__).parent.parent / "dalle_lib"
UNCHECKED = {"memory"}
CHECKED = [f"{PACKAGE.name}.{each.name}" for each in pkgutil.iter_modules([PACKAGE]) if each.name not in UNCHECKED]

install_import_hook(CHECKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
