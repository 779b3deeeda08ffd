"""The shape of the package: imports point one way, names are explicit, imports are quick."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedmend

SOURCE = Path(fedmend.__file__).parent
FILES = {
    ".".join(("fedmend", *path.relative_to(SOURCE).with_suffix("").parts)): path
    for path in sorted(SOURCE.rglob("*.py"))
}

LAYERS = [
    {"errors", "files", "config", "graph", "plugins", "training.streams"},
    {"data", "privacy"},
    {"models", "federation", "evaluation", "training.state"},
    {
        "runs.record",
        "runs.renamed",
        "runs.node_memory",
    },  # what a run's folder holds: read and written everywhere
    {"training", "mending", "secret"},
    {"methods"},
    {"engines", "reports"},
    {"runs", "deploy"},
    {"studies", "bench"},
    {"cli"},
]
"""From the ground up: a module imports from its own layer or from below, never from above."""


def layer_of(module: str) -> int:
    inside = module.removeprefix("fedmend.")
    for name in (inside, inside.split(".")[0]):
        for number, names in enumerate(LAYERS):
            if name in names:
                return number
    raise AssertionError(f"{module} is in no layer: give it its place in LAYERS")


def imported(path: Path) -> set[str]:
    """Every fedmend module a file imports, wherever in the file, but for types alone."""
    tree = ast.parse(path.read_text())
    only_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            found |= {
                f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module
                for alias in node.names
            }
    return {name for name in found if name.startswith("fedmend.")}


PIECES = ("training", "mending", "secret", "models", "privacy", "data", "federation")
MODULES = {name.removesuffix(".__init__") for name in FILES}


@pytest.mark.parametrize("module", [name for name in FILES if not name.endswith("__init__")])
def test_imports_point_one_way(module: str) -> None:
    for other in imported(FILES[module]):
        assert layer_of(other) <= layer_of(module), f"{module} imports {other}, which is above it"


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("fedmend.methods.")])
def test_a_method_never_imports_an_engine(module: str) -> None:
    above = ("fedmend.engines", "fedmend.cli", "fedmend.reports", "fedmend.runs.train")
    assert not [name for name in imported(FILES[module]) if name.startswith(above)]


@pytest.mark.parametrize(
    "module",
    [n for n in FILES if n.split(".")[1] in PIECES],
)
def test_pieces_know_no_method_and_no_engine(module: str) -> None:
    above = ("fedmend.methods", "fedmend.engines", "fedmend.cli", "fedmend.reports")
    assert not [name for name in imported(FILES[module]) if name.startswith(above)]


def test_six_modules_at_the_top() -> None:
    top = {path.name for path in SOURCE.glob("*.py")}
    assert top == {"__init__.py", "graph.py", "config.py", "errors.py", "files.py", "federation.py"}


def test_that_the_search_finds_imports() -> None:
    assert "fedmend.training.aggregation" in imported(FILES["fedmend.methods.fedavg"])
    assert "fedmend.methods" in imported(FILES["fedmend.runs.train"])
    assert "fedmend.engines.wire" in imported(FILES["fedmend.engines.base"])


def test_public_names_are_explicit_and_there() -> None:
    assert fedmend.__all__ == sorted(set(fedmend.__all__))
    assert len(fedmend.__all__) <= 20
    for name in fedmend.__all__:
        assert getattr(fedmend, name) is not None
        assert name in dir(fedmend)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fedmend.trian


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    ["import fedmend", "import fedmend.methods; fedmend.methods.METHODS", "import fedmend.errors"],
)
def test_light_imports_stay_light(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "fedmend" in loaded
    assert not loaded & {"torch", "numpy", "scipy", "igraph", "pyarrow", "safetensors"}


def test_training_does_not_import_what_only_some_need() -> None:
    loaded = loaded_by("import fedmend.runs.train")
    assert "torch" in loaded
    assert not loaded & {
        "torch_geometric",
        "pymetis",
        "sklearn",
        "matplotlib",
        "typer",
        "rich",
        "nvflare",
    }


def test_no_module_uses_pickle_to_read() -> None:
    """Planetoid's files are pickles and have their own restricted reader; nothing else may."""
    for module, path in FILES.items():
        if module != "fedmend.data.planetoid":
            source = path.read_text()
            assert "import pickle" not in source, module
            assert "torch.load(" not in source, module
            assert "allow_pickle=True" not in source, module


def test_nobody_sets_environment_variables() -> None:
    """They are the whole process's.

    `tracking` takes back what wandb has no other switch for; `--plugin FILE` is for the processes
    that this one starts as well, which is what the user asked for.
    """
    setting = {
        module
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Subscript)
            and not isinstance(node.ctx, ast.Load)
            and ast.unparse(node.value) == "os.environ"
        )
        or (
            isinstance(node, ast.Attribute)
            and ast.unparse(node)
            in {f"os.environ.{name}" for name in ("setdefault", "update", "pop", "clear")}
            | {"os.putenv", "os.unsetenv"}
        )
    }
    assert setting == {"fedmend.runs.tracking", "fedmend.plugins.registry"}
