"""A new run, of a data set or of a folder of pictures, with its keys: what `dalle-lib run new` does."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dalle_lib.names import HUB
from dalle_lib.organizing.keys import RunKeys, keys_folder, make_keys, require_no_keys
from dalle_lib.organizing.options import KeySettings
from dalle_lib.organizing.sizing import sized_for
from dalle_lib.run import RunCard, new_run, vqgan_file
from dalle_lib.run.new import SPLITS, require_new
from dalle_lib.run.sizes import Preset
from dalle_lib.streaming.prepare import Prepared, prepare_dataset
from dalle_lib.streaming.prepare.folders import count_pictures
from dalle_lib.streaming.prepare.opening import place_of
from dalle_lib.streaming.prepare.preparing import TRAIN
from dalle_lib.streaming.prepare.settings import PrepareSettings

WANTED_HELD_OUT = 20
"""Pictures that are held out of a small folder, as nearly as a share of at most MAX_HELD_OUT allows."""
MAX_HELD_OUT = 0.1


@dataclass(frozen=True)
class MadeRun:
    """What `make_run` has made."""

    card: RunCard
    folder: Path
    keys: RunKeys | None
    """The run's keys; None for a run that everybody may join, without a first peer."""
    prepared: Prepared | None
    """The data set that was made of pictures; None where there was one."""


def make_run(
    out: str | Path,
    data: str | Path,
    *,
    name: str | None = None,
    vqgan: str | None = None,
    preset: Preset | None = None,
    tokenizer: str | None = None,
    volunteers: int | None = None,
    upload_bits: Literal[8, 4] = 8,
    held_out: float | None = None,
    captions_from_names: bool = False,
    keys: KeySettings | None = None,
    token: str | None = None,
    say: Callable[[str], None] = print,
) -> MadeRun:
    """Make a run in the new folder `out`, and return it.

    `data` is a data set as for `new_run`, or pictures with captions as for `prepare_dataset`, of which a data set is
    made first, in the folder OUT.data; where that was broken off, the same call goes on. `vqgan` is what `vqgan_file`
    takes. With None, that of a data set lies beside it, and one is trained for pictures, as with "train"; `held_out`
    and `captions_from_names` are for pictures, as in PrepareSettings; with None, more than its share is held out of few
    pictures.

    For `volunteers` people, epochs are sized so that they average at most half of the time (`sized_for`);
    `upload_bits` are the card's. `keys` says for whom the run is (`make_keys`). `say` is told what takes long.

    Raises what `new_run`, `prepare_dataset` and `make_keys` do, before anything is made where that can be.
    """
    out, keys = Path(out), keys or KeySettings()
    require_new(out)
    if keys.is_needed:
        require_no_keys(out)
    if volunteers is not None and not 1 <= volunteers <= 10_000:
        raise ValueError(f"expected 1 to 10,000 volunteers, but got {volunteers}.")
    prepared, file = None, vqgan
    if is_unprepared(data):
        prepared = _prepare(data, out, vqgan or TRAIN, held_out, captions_from_names, token, say)
        data, file = prepared.folder, None
    card = new_run(out, data, name=name, vqgan=file, preset=preset, tokenizer=tokenizer, token=token)
    if upload_bits != card.averaging.upload_bits:
        card.with_changes(averaging=card.averaging.model_dump() | {"upload_bits": upload_bits}).save(out)
        card = RunCard.load(out)
    if volunteers is not None and preset != "paper":
        sized_for(card, volunteers).save(out)
        card = RunCard.load(out)
    made = make_keys(card, out, keys) if keys.is_needed else None
    return MadeRun(card if made is None else made.card, out, made, prepared)


def is_unprepared(data: str | Path) -> bool:
    """Return whether `data` are pictures of this machine of which no data set has been made."""
    if str(data).startswith(HUB) or not place_of(data).exists():
        return False
    return not any(Path(data, split).is_dir() for split in SPLITS)


def _prepare(
    source: str | Path,
    out: Path,
    vqgan: str,
    held_out: float | None,
    captions_from_names: bool,
    token: str | None,
    say: Callable[[str], None],
) -> Prepared:
    """Return the data set of pictures, made in the folder beside `out`."""
    place = keys_folder(out).with_suffix(".data")
    file = vqgan_file(vqgan)
    maker = "a VQ-GAN that is trained on them for minutes" if vqgan == TRAIN else f"the VQ-GAN of {vqgan}"
    if held_out is None:
        held_out = PrepareSettings().held_out
        if count := count_pictures(place_of(source), most=math.ceil(WANTED_HELD_OUT / held_out)):
            held_out = min(MAX_HELD_OUT, max(held_out, WANTED_HELD_OUT / count))
    say(
        f"{source} is no data set: preparing its pictures in {place} first, with {maker}; {held_out:.1%} are held out. "
        "Broken off, the same command goes on. `dalle-lib prepare` has more options."
    )
    settings = {"held_out": held_out, "captions_from_names": captions_from_names}
    return prepare_dataset(source, place, vqgan=file, token=token, **settings)
