"""Build the embedded runs: `emoji` (large set, finished model) and `emoji-mini` (small set, young model to train on).

    apt-get install fonts-noto-color-emoji fonts-dejavu-core unicode-data
    pip install scikit-learn
    python scripts/build_emoji.py --help

The stages build on each other, in this order: vqgan and data of each run (`--name`), clip, young, full, report. All is
seeded; each stage takes at most an hour of one core, and `--start` goes on from what an earlier one has written.
"""

import tyro
from emoji_clip import Clip
from emoji_data import Data
from emoji_model import Full, Young
from emoji_report import Report
from emoji_vqgan import Vqgan

if __name__ == "__main__":
    stages = {"vqgan": Vqgan, "data": Data, "clip": Clip, "young": Young, "full": Full, "report": Report}
    tyro.extras.subcommand_cli_from_dict(stages, description=__doc__).run()
