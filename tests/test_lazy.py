"""Packages whose names are imported when they are first used, and what is told without loading torch by that."""

import ast
import importlib
import subprocess
import sys
from types import ModuleType

import pytest

PACKAGES = (
    "dalle_lib", "dalle_lib.auth", "dalle_lib.inference", "dalle_lib.model", "dalle_lib.run", "dalle_lib.streaming",
    "dalle_lib.swarm",
)  # fmt: skip


@pytest.fixture(params=PACKAGES)
def package(request) -> ModuleType:
    return importlib.import_module(request.param)


def imports_for_type_checkers(package: ModuleType) -> dict[str, str]:
    """Return the module of each name that the package imports if TYPE_CHECKING alone."""
    with open(package.__file__, encoding="utf-8") as handle:
        tree = ast.parse(handle.read())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_the_package_gives_what_users_need_first():
    expected = "TextToImage RunCard PeerSettings join_run local_swarm DALLE ModelConfig LAMB8bit estimate"
    assert set(importlib.import_module("dalle_lib").__all__) == set(expected.split())


def test_each_name_is_the_object_of_its_home(package):
    homes = imports_for_type_checkers(package)
    assert sorted(homes) == package.__all__
    for name, home in homes.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name), name


def test_no_name_is_hidden_by_a_module_beside_it(package):
    """`import dalle_lib.swarm.join` would put a module in the place of a lazy name `join`."""
    for name in package.__all__:
        assert importlib.util.find_spec(f"{package.__name__}.{name}") is None, name


def test_names_that_a_package_lacks_are_attribute_errors(package):
    assert not hasattr(package, "no_such_name")
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no_such_name'"):
        _ = package.no_such_name


def test_dir_lists_lazy_names_beside_the_modules_own():
    code = "import dalle_lib; print(*dir(dalle_lib))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert {"TextToImage", "estimate", "__version__", "__doc__"} <= set(listed.stdout.split())


NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"


@pytest.mark.parametrize(
    ("typed", "ends"),
    [(["--initial-peers", NOBODY], 1), (["--alone", "--host", "300.1.1.1"], 2), ([], 2)],
    ids=["nobody answers", "a wrong host", "no first peer"],
)
def test_a_mistake_is_answered_without_loading_anything_heavy(typed, ends, tmp_path):
    code = (
        "import sys; from dalle_lib.cli import main\n"
        "try: main()\n"
        f"except SystemExit as ended: assert ended.code == {ends}, ended.code\n"
        "heavy = {'torch', 'hivemind', 'transformers', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    )
    command = [sys.executable, "-c", code, "join", "--run", "emoji-mini", *typed]
    subprocess.run(command, check=True, timeout=300, cwd=tmp_path)


def test_peers_are_started_without_loading_torch(tmp_path):
    code = (
        "import sys; from dalle_lib.run import RunCard; from dalle_lib.swarm import PeerSettings;"
        "from dalle_lib.swarm.process import crew;"
        "crew.join = lambda settings, *_: print(settings.device);"
        "crew.start_crew(PeerSettings(run='emoji'), RunCard.load('emoji'), sys.argv[1]);"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("auto\n", "")


def test_the_command_line_explains_itself_without_loading_anything_heavy():
    code = (
        "import sys, dalle_lib.cli;"
        "heavy = {'torch', 'hivemind', 'transformers', 'pandas', 'PIL'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
