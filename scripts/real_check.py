"""Does everything that the kit fetches from others still answer, and still work with it?

`python scripts/real_check.py` runs each check, prints a line about it, goes on after a failure, and exits with 1 if any
failed. It downloads about 2 GB. `.github/workflows/real.yml` runs it each week, once the repository is published.

The tests run this script against stand-ins on this machine, so they prove its code and no more. These stay unproved
until its first pass: that the badges' addresses answer, that C4 streams from the Hub, that the Hub's T5 tokenizer and
CLIP ViT-B/32 load, that the paper's checkpoint and its VQ-GAN have the layout that the kit reads, and that they draw.
"""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import tyro
from huggingface_hub import constants, hf_hub_download
from transformers import AutoTokenizer

from dalle_lib.files import sha256_of
from dalle_lib.hub_http import httpx
from dalle_lib.inference import TextToImage
from dalle_lib.inference.published import PaperFiles, hub_file
from dalle_lib.rerank import CLIPRanker
from dalle_lib.streaming import TEXT_MODEL, stream_text

PROMPT = "a red fox on a green hill"
RECORDS = 100
TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What is checked."""

    badges: Path = Path(__file__).parent.parent / "colab_badges.md"
    """The page of notebooks, with an address behind each badge."""
    text: str = "allenai/c4"
    """The data set that notebook 03 streams."""
    paper: PaperFiles = field(default_factory=PaperFiles)

    def checks(self, out: Path) -> dict[str, Callable[[], str]]:
        """Return each check by its name; it returns what it found, and raises what went wrong. Pictures go to `out`."""
        opened = {f"badge {address}": lambda address=address: check_address(address) for address in self.addresses()}
        return opened | {
            f"{RECORDS} records of {self.text}": self.check_text,
            "the tokenizer of captions": self.check_tokenizer,
            "CLIP": self.check_clip,
            "the paper's checkpoint": self.check_model,
            "the paper's VQ-GAN": self.check_vqgan,
            "a picture": lambda: self.check_drawing(out),
        }

    def addresses(self) -> list[str]:
        """Return the addresses that the badges lead to, and those of the notebooks to download."""
        return re.findall(r"\]\((https?://[^)]+\.ipynb)\)", self.badges.read_text(encoding="utf-8"))

    def check_text(self) -> str:
        """Read the first records as notebook 03 does, and return how many characters they hold."""
        stream = stream_text(self.text, AutoTokenizer.from_pretrained(TEXT_MODEL))
        texts = [record["text"] for record in islice(stream.records(), RECORDS)]
        if len(texts) != RECORDS:
            raise ValueError(f"expected {RECORDS} records, but the stream ended after {len(texts)}.")
        return f"{sum(map(len, texts))} characters"

    def check_tokenizer(self) -> str:
        """Turn a caption into ids, and return the tokenizer's size."""
        tokenizer = self.paper.read_tokenizer()
        tokenizer([PROMPT])
        return f"{tokenizer.vocab_size} ids, {fetched('tokenizer', self.paper.tokenizer)}"

    def check_clip(self) -> str:
        """Place a caption among CLIP's features, and return how many there are."""
        features = CLIPRanker(self.paper.clip).embed_captions([PROMPT]).shape[1]
        return f"{features} features, {fetched('clip', self.paper.clip)}"

    def check_model(self) -> str:
        """Load the transformer, and return its size and its file's digest."""
        model = self.paper.read_model()
        count = sum(parameter.numel() for parameter in model.parameters())
        return f"{count} parameters, {fetched('model', self.paper.model)}"

    def check_vqgan(self) -> str:
        """Load the VQ-GAN, and return its sizes and the digest of its converted file, which run cards name."""
        config = self.paper.read_vqgan().config
        kept = sorted((Path(constants.HF_HOME) / "dalle_lib").glob("*.safetensors"))
        digests = ", ".join(f"{file.name} SHA-256 {sha256_of(file)}" for file in kept)
        return f"{config.codebook_size} codes, {config.grid}x{config.grid} a picture; converted: {digests}"

    def check_drawing(self, out: Path) -> str:
        """Draw one picture, and return where it is."""
        drawing = TextToImage.from_paper(self.paper)(PROMPT, candidates=1, best=1, seed=0)
        return ", ".join(str(file) for file in drawing.save(out))


def check_address(address: str) -> str:
    """Open an address as a browser does, and return the answer's status. Raises httpx.HTTPError if it is an error."""
    answer = httpx.get(address, follow_redirects=True, timeout=TIMEOUT_S)
    answer.raise_for_status()
    if "/raw/" in address:
        answer.json()["cells"]  # a page in place of the notebook would be no JSON
    return f"HTTP {answer.status_code}"


def fetched(part: str, repository: str) -> str:
    """Return the name and the digest of a part's file that has been fetched from the Hub."""
    name = hub_file(part, repository).source.removeprefix(f"{repository}/")
    return f"{repository}/{name} SHA-256 {sha256_of(hf_hub_download(repository, name))}"


def run(checks: dict[str, Callable[[], str]]) -> int:
    """Run all checks, print a line about each, and return how many failed."""
    failed = 0
    for name, check in checks.items():
        start = time.monotonic()
        try:
            result = f"ok      {name}: {check()}"
        except Exception as error:  # whatever is wrong with one source, the others are checked too
            failed += 1
            result = f"FAILED  {name}: {type(error).__name__}: {error}"
        print(f"{result} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return failed


def main(sources: Sources, out: Path = Path("outputs/real")) -> None:
    """Run all checks, and exit with 1 if any failed; pictures go to `out`."""
    sys.exit(run(sources.checks(out)) > 0)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__, config=(tyro.conf.OmitArgPrefixes,))
