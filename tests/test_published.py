"""The paper's own model from first file to last picture, with random weights in the published layouts, offline."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from conftest import same_weights
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from dalle_lib.files import sha256_of
from dalle_lib.inference import PAPER, TextToImage
from dalle_lib.inference.published import PaperFiles, load_published, save_published
from dalle_lib.model import DALLE, ModelConfig, generate_rows
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.vqgan import VQGAN, VQGANConfig

SHALLOW = replace(ModelConfig.paper(), depth=2)
"""The paper's model with 2 of its 64 blocks: all of them would draw for an hour."""
SMALL = ModelConfig(dim=32, depth=10, heads=2, dim_head=32, text_length=16, text_vocab=100, image_vocab=64, grid=8)
PROMPT = "a red fox on a green hill"


@pytest.fixture(scope="module")
def model() -> DALLE:
    """A model whose blocks outweigh its input: with fresh weights, it would repeat one code whatever the caption."""
    torch.manual_seed(0)
    model = DALLE(SHALLOW).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("_scale"):
            parameter.fill_(5)
    return model


@pytest.fixture(scope="module")
def vqgan() -> VQGAN:
    torch.manual_seed(1)
    return VQGAN(VQGANConfig()).eval()


@pytest.fixture(scope="module")
def files(model, vqgan, tmp_path_factory) -> Iterator[PaperFiles]:
    folder = tmp_path_factory.mktemp("paper")
    for part in "model", "vqgan", "tokenizer", "clip":
        (folder / part).mkdir()
    save_published(folder / "model" / "pytorch_model.pt", model)
    torch.save({"state_dict": vqgan.state_dict(), "global_step": 7}, folder / "vqgan" / "last.ckpt")
    save_t5_tokenizer(folder / "tokenizer")
    save_clip(folder / "clip")
    yield PaperFiles(
        model=str(folder / "model"),
        vqgan=(str(folder / "vqgan" / "last.ckpt"),),
        tokenizer=str(folder / "tokenizer"),
        clip=str(folder / "clip"),
        config=SHALLOW,
    )
    shutil.rmtree(folder)  # a gigabyte


@pytest.fixture(scope="module")
def draw(files) -> TextToImage:
    return TextToImage.from_paper(files, "cpu")


@pytest.fixture
def server(files, tmp_path, monkeypatch) -> Iterator[ThreadingHTTPServer]:
    """Stands in for the VQ-GAN's authors' server; what is fetched is kept in `tmp_path`."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        server.folder, server.asked = Path(files.vqgan[0]).parent, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class StandIn(SimpleHTTPRequestHandler):
    """Serves a folder, a page in place of a file, and the beginning of a file that breaks off."""

    def __init__(self, request, address, server) -> None:
        super().__init__(request, address, server, directory=str(server.folder))

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path not in ("/page", "/broken"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000" if self.path == "/broken" else "30")
        self.end_headers()
        self.wfile.write(b"<html>this link is old.</html>")
        return None

    def log_message(self, *message) -> None:
        pass


def save_t5_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([PROMPT, "a blue house by the lake", "two dogs in the snow"], trainer)
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))


def save_clip(folder: Path) -> None:
    """Save a ViT-B/32 whose text tokens are bytes."""
    start, end = "<|startoftext|>", "<|endoftext|>"
    vocab = {token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), start, end])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = [(token, vocab[token]) for token in (start, end)]
    tokenizer.post_processor = TemplateProcessing(single=f"{start} $A {end}", special_tokens=special)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end, pad_token=end, unk_token=end
    ).save_pretrained(folder)
    text = {"vocab_size": len(vocab), "bos_token_id": vocab[start], "eos_token_id": vocab[end]}
    torch.manual_seed(2)
    CLIPModel(CLIPConfig(text_config=text)).save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)


def ids_of(caption: str, files: PaperFiles) -> list[int]:
    tokenizer = Tokenizer.from_file(f"{files.tokenizer}/tokenizer.json")
    assert tokenizer.encode(caption).ids[-1] == 1, "this tokenizer adds no special id, so leaving it out shows nothing"
    return tokenizer.encode(caption, add_special_tokens=False).ids


def first_two_rows(model: DALLE, text: torch.Tensor, seed: int) -> torch.Tensor:
    rows = generate_rows(model, text, top_k=256, seed=seed)
    return [next(rows)[:, 0] for _ in range(2)][-1]


def test_the_paper_draws_from_its_files(draw, files, model, vqgan):
    drawing = draw(PROMPT, candidates=1, best=1, seed=3)
    assert drawing.model == PAPER
    assert drawing.codes.shape == (1, 1024)
    assert 0 <= drawing.codes.min() <= drawing.codes.max() < 8192
    assert len(drawing.codes.unique()) > 100

    ids = ids_of(PROMPT, files)
    text, no_text = torch.tensor([ids + [1] * (256 - len(ids))]), torch.ones(1, 256, dtype=torch.long)
    assert torch.equal(first_two_rows(model, text, seed=3), drawing.codes[:, :64])
    assert not torch.equal(first_two_rows(model, no_text, seed=3), drawing.codes[:, :64])

    assert drawing.candidates.shape == (1, 256, 256, 3)
    assert torch.equal(vqgan.decode(drawing.codes), drawing.candidates)
    assert drawing.candidates.float().std() > 1
    assert drawing.pictures[0].size == (256, 256)
    assert drawing.scores.abs().item() <= 1


def test_captions_are_cut_and_padded_as_in_training(draw, files):
    ids, long = ids_of(PROMPT, files), ids_of(" ".join([PROMPT] * 40), files)
    assert len(long) > 256
    short_row, long_row = draw.tokenizer([PROMPT, " ".join([PROMPT] * 40)]).tolist()
    assert short_row == ids + [1] * (256 - len(ids))
    assert long_row == long[:256]
    assert 1 not in long_row


def test_local_parts_are_not_fetched(files):
    assert files.downloads() == []


@pytest.mark.parametrize("form", ["trainer.pt", "model.pt", "nested.pt", "model.safetensors"])
def test_a_model_is_read_in_each_form_it_is_published_in(form, tmp_path):
    model = DALLE(SMALL)
    prefix = "model." if form == "trainer.pt" else ""
    tensors = {prefix + name: tensor for name, tensor in model.to_reference().items()}
    if form.endswith(".safetensors"):
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, tmp_path / form)
    else:
        torch.save({"state_dict": tensors} if form == "nested.pt" else tensors, tmp_path / form)
    assert same_weights(load_published(tmp_path / form, SMALL), model)


def test_a_folder_without_the_file_is_refused_by_what_was_expected(files, tmp_path):
    (tmp_path / "README.md").write_text("empty")
    with pytest.raises(ValueError, match=r"holds no model: expected .*\.safetensors, \.pt.* found README\.md"):
        replace(files, model=str(tmp_path)).read_model()
    with pytest.raises(ValueError, match=r"holds no tokenizer: expected tokenizer\.json, but found README\.md"):
        replace(files, tokenizer=str(tmp_path)).read_tokenizer()


def test_a_download_is_announced_with_its_size(files, server):
    remote = replace(files, vqgan=(f"{server.url}/last.ckpt",))
    (found,) = remote.downloads()
    assert (found.part, found.source) == ("vqgan", f"{server.url}/last.ckpt")
    assert found.bytes == Path(files.vqgan[0]).stat().st_size
    assert server.asked == []


def test_sources_are_tried_in_order_until_one_is_the_vqgan(server, vqgan):
    paths = ["/missing", "/broken", "/page", "/last.ckpt", "/never"]
    sources = tuple(server.url + path for path in paths)
    assert same_weights(PaperFiles(vqgan=sources).read_vqgan(), vqgan)
    assert server.asked == paths[:-1]
    assert same_weights(PaperFiles(vqgan=sources).read_vqgan(), vqgan)
    assert server.asked == paths[:-1], "what was fetched once is fetched again"
    assert PaperFiles(model="/", tokenizer="/", clip="/", vqgan=sources).downloads() == []


def test_failed_downloads_leave_nothing_and_name_each_source(server, tmp_path):
    sources = (f"{server.url}/missing", f"{server.url}/broken", "http://127.0.0.1:1/closed")
    with pytest.raises(ConnectionError) as failure:
        PaperFiles(vqgan=sources).read_vqgan()
    assert all(source in str(failure.value) for source in sources)
    assert "404" in str(failure.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def model_on_hub(hub, tmp_path):
    """A small model in the published layout, as owner/paper on a stand-in for the Hub."""
    save_published(tmp_path / "w.pt", DALLE(SMALL))
    hub.add("owner/paper", {"README.md": b"hi", "w.pt": (tmp_path / "w.pt").read_bytes()})
    return hub


def test_a_model_on_the_hub_is_announced_and_fetched(model_on_hub, tmp_path):
    files = PaperFiles(model="owner/paper", tokenizer="/", clip="/", vqgan=("/vqgan.safetensors",), config=SMALL)
    (found,) = files.downloads()
    assert (found.part, found.source, found.bytes) == ("model", "owner/paper/w.pt", (tmp_path / "w.pt").stat().st_size)
    assert found.sha256 == sha256_of(tmp_path / "w.pt")
    assert files.read_model().config == SMALL


def test_a_damaged_download_from_the_hub_is_refused(model_on_hub, tmp_path):
    model_on_hub.faults = [Fault("GET /_cdn/", damaged=True)]
    with pytest.raises(ValueError, match=f"came damaged: expected SHA-256 {sha256_of(tmp_path / 'w.pt')}"):
        PaperFiles(model="owner/paper", config=SMALL).read_model()


def test_a_repository_that_the_hub_does_not_have_is_named(model_on_hub):
    with pytest.raises(ConnectionError, match="owner/other on the Hub cannot be reached"):
        PaperFiles(model="owner/other", config=SMALL).downloads()
