"""A new run for a data set: its card, with sizes that suit the data, and beside it what peers need."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dalle_lib.files import copy_folder, require_writable, sha256_of
from dalle_lib.names import HUB
from dalle_lib.run.card import RunCard
from dalle_lib.run.files import download
from dalle_lib.run.parts import DataCard, file_card
from dalle_lib.run.sizes import SMALL_GRID, T5, Preset, require_paper_codes, sizes_for
from dalle_lib.streaming import CodesFormat, CodeStream, Filters, Manifest, stream_codes
from dalle_lib.streaming.prepare.hub_files import FetchedFiles
from dalle_lib.streaming.prepare.preparing import TRAIN
from dalle_lib.streaming.tokenizer import train_tokenizer
from dalle_lib.streaming.tokenizer_file import load_tokenizer
from dalle_lib.version import __version__

TOKENIZER, VQGAN = "tokenizer.json", "vqgan.safetensors"
"""Names of the files beside a new card; the VQ-GAN's is also the one in a data set that `prepare_dataset` made."""
SPLITS = ("train", "held_out")
MAX_CAPTIONS = 20_000
"""Captions, from the start of a pass over the training data, of which a tokenizer is made."""
SMALL_VOCAB, LARGE_VOCAB = 1024, 16_384
"""Different text tokens at most, for small pictures and for larger ones."""
CUT = 0.01
"""Share of these captions that may be longer than what is read of them."""


def new_run(
    out: str | Path,
    data: str | Path,
    *,
    name: str | None = None,
    vqgan: str | Path | None = None,
    preset: Preset | None = None,
    tokenizer: str | Path | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> RunCard:
    """Make a run of a data set in the new folder `out`, with a tokenizer of its captions, and return its card.

    `data` is what `prepare_dataset` made: its folder, whose codes are copied, or "hf://datasets/owner/name", of which
    the card names the commit that `revision`, or else the main branch, has now. `vqgan` is its VQ-GAN, where that is
    not beside the data: a file, or the name of a run that has it, as `vqgan_file` takes them. `name` is the run's, the
    folder's if None. `token` is a Hub token, without which huggingface_hub looks for one.

    `preset` is "small" for the model and the schedule of `emoji-mini`, which a processor trains in minutes to hours, or
    "paper" for the run of arXiv:2207.03481 in every field, with its filters and T5's tokenizer. With None, data of at
    most 16x16 codes a picture get the small model; larger ones get the paper's model and schedule, with a tokenizer of
    their own and no filters. `tokenizer` is a file, or owner/name on the Hub, to take in place of a new one.

    All may be changed in the card until the first peer joins: `card.with_changes(...).save(out)`. Raises ValueError for
    data, files, a name or a folder that cannot be used, and for data that the preset does not fit; ConnectionError if
    the Hub cannot be asked.
    """
    out, source = Path(out), str(data).rstrip("/")
    filters = Filters.paper() if preset == "paper" else Filters()
    with _whole_or_not_there(out) as folder:
        on_hub = None
        if source.startswith(HUB):
            on_hub = FetchedFiles(source, revision, folder.with_name("from_hub"), token)
        data_card, rows, captions = _read(source, on_hub and on_hub.revision, token, filters)
        if preset == "paper":
            require_paper_codes(data_card.format)
            tokenizer = tokenizer or T5
        file = Path(source, VQGAN) if vqgan is None else Path(vqgan_file(str(vqgan)))
        _bring_vqgan(folder, data_card.format, file, None if vqgan else on_hub)
        if on_hub is None:
            for split in SPLITS:
                copy_folder(Path(source, split), folder / split)
        vocab = SMALL_VOCAB if data_card.format.grid <= SMALL_GRID else LARGE_VOCAB
        if tokenizer is None:
            train_tokenizer(captions, vocab).save(str(folder / TOKENIZER))
        else:
            shutil.copyfile(_tokenizer_file(tokenizer, token), folder / TOKENIZER)
        used = load_tokenizer(folder / TOKENIZER)
        lengths = sorted(len(encoding.ids) for encoding in used.encode_batch(captions))
        RunCard.of(
            name=name or out.name,
            data=data_card,
            tokenizer=file_card(folder / TOKENIZER),
            vqgan=file_card(folder / VQGAN),
            kit=f">={__version__}",
            **sizes_for(
                data_card.format,
                rows=rows,
                text_vocab=used.get_vocab_size(),
                needed_text=lengths[int((1 - CUT) * (len(lengths) - 1))],
                preset=preset,
            ),
        ).in_folder(folder).save(folder)
    return RunCard.load(out)


def require_new(out: Path) -> None:
    """Raise ValueError if no run can be made in `out`, because something is there already or nothing can be."""
    require_writable(out, "folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"expected a new folder for the run, but {out} is there already: name another one.")


@contextmanager
def _whole_or_not_there(out: Path) -> Iterator[Path]:
    """Yield a folder that takes the place of `out` at the end. Raises ValueError as `require_new` does."""
    require_new(out)
    above = out.absolute().parent
    above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=above, prefix=f".{out.name}.") as beside:
        folder = Path(beside, "run")
        folder.mkdir()
        yield folder
        if out.exists():
            out.rmdir()
        os.replace(folder, out)


def _read(source: str, commit: str | None, token: str | None, filters: Filters) -> tuple[DataCard, int, list[str]]:
    """Return what a card says of a data set, its rows for training, and captions of them, at most MAX_CAPTIONS."""
    _require_prepared(source)

    def open_split(split: str) -> CodeStream:
        return stream_codes(f"{source}/{split}", seed=0, revision=commit, filters=filters, token=token)

    with ExitStack() as stack:
        train, held_out = (stack.enter_context(closing(open_split(split))) for split in SPLITS)
        codes, rows = train.data.manifest.format, train.data.manifest.rows
        if held_out.data.manifest.format != codes:
            raise ValueError(f"the codes of {source}/held_out mean something else than those of {source}/train.")
        captions = [next(train).caption]
        while train.position < min(rows, MAX_CAPTIONS):
            captions.append(next(train).caption)
        place = f"{source}/" if commit else ""
        if not (train.data.has_manifest and held_out.data.has_manifest):
            raise ValueError(
                f"{source} has no manifest: is it still being prepared? Run the same dalle-lib prepare to its end."
            )
        if commit is None:
            _require_files(source, {"train": train.data.manifest, "held_out": held_out.data.manifest})
        splits = {split: f"{place}{split}" for split in SPLITS}
        return (
            DataCard(**splits, revision=commit, manifest=train.data.manifest.sha256, format=codes, filters=filters),
            rows,
            captions,
        )


def _require_prepared(source: str) -> None:
    """Raise ValueError if a folder of this machine is not what `prepare_dataset` makes."""
    if source.startswith(HUB) or all(Path(source, split).is_dir() for split in SPLITS):
        return
    if not Path(source).is_dir():
        what = "there is no such folder"
    elif Path(source, "train").is_dir():
        what = "it has no folder held_out: is it still being prepared, or was no picture held out"
    else:
        what = f"{source} has no folders train and held_out. Pictures become one by dalle-lib prepare"
    raise ValueError(f"expected the folder of a data set, or {HUB}owner/name, but got {source!r:.200}: {what}.")


def _require_files(source: str, manifests: Mapping[str, Manifest]) -> None:
    """Raise ValueError if a file of a data set on this machine is not there, such as one that the Hub alone has."""
    for split, manifest in manifests.items():
        for entry in manifest.files:
            file = Path(source, split, entry.name)
            if not file.is_file() or file.stat().st_size != entry.bytes:
                raise ValueError(
                    f"{file} is gone or is not the file that the manifest names. If the data were sent to the Hub and "
                    f"not kept here, name them as {HUB}owner/name; else run the same dalle-lib prepare again."
                )


def _bring_vqgan(folder: Path, codes: CodesFormat, file: Path, on_hub: FetchedFiles | None) -> None:
    """Put the VQ-GAN of a data set into `folder`. Raises ValueError unless it is the one that made the codes."""
    with ExitStack() as stack:
        if on_hub is not None and on_hub.ending_with((VQGAN,)):
            file = stack.enter_context(on_hub.open(VQGAN, keep=True))
        if not file.is_file():
            raise ValueError(
                f"expected the VQ-GAN of the codes in {file}, but it is not there: name its file, or a run that has "
                "it, as vqgan."
            )
        if (found := sha256_of(file)) != codes.vqgan_sha256:
            raise ValueError(
                f"{file} is another VQ-GAN than the codes': expected SHA-256 {codes.vqgan_sha256}, found {found}."
            )
        if file != folder / VQGAN:
            shutil.copyfile(file, folder / VQGAN)


def _tokenizer_file(named: str | Path, token: str | None) -> Path:
    """Return a tokenizer's file, downloaded for owner/name on the Hub. Raises what `download` does."""
    if Path(named).is_file() or Path(named).suffix == ".json":
        return Path(named)  # a file that is not there says so when it is copied
    expected = f"expected {TOKENIZER} of {str(named)!r:.100} on the Hub, or a file on this machine, but there is none."
    return download(str(named), TOKENIZER, token, expected)


def vqgan_file(named: str) -> str | Path:
    """Return the file of the VQ-GAN that a run or a file names; "train" stays as it is, for `prepare_dataset`.

    Raises ValueError if there is no such run or file, and ConnectionError if the Hub cannot be asked for it.
    """
    if named == TRAIN or Path(named).is_file():
        return named
    if Path(named).suffix == ".safetensors":
        raise ValueError(f"expected the file of a VQ-GAN, but there is no file {named}.")
    card = RunCard.load(named)
    return card.path(card.vqgan)
