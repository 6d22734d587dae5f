"""The distribution: what is installed, what is imported, and in which direction."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "roost": "src/roost",
    "roost.actors": "actors",
    "roost.mesh": "mesh",
    "roost.rdma": "rdma",
    "roost.controller": "controller",
}
LAYERS = ["actors.wire", "actors.link", "actors", "mesh", "rdma", "controller"]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> dict[str, Path]:
    """Every module of the tree, by the name it is installed under."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("")
            parts = [part for part in inner.parts if part != "__init__"]
            found[".".join([package, *parts])] = path
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # A copy, so that the build leaves nothing in the tree.
    source = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)],
        check=True,
        timeout=100,
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_of_the_tree_and_nothing_but_roost(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = set()
    for name, path in modules().items():
        folder = name.replace(".", "/")
        wanted.add(f"{folder}/__init__.py" if path.name == "__init__.py" else f"{folder}.py")
    assert wanted <= names, f"list these packages in pyproject.toml: {sorted(wanted - names)}"
    assert "roost/py.typed" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"roost"}


def test_the_wheel_is_small_and_pure(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000
    assert wheel.name.endswith("py3-none-any.whl")


def run_python(code: str) -> str:
    """Run code in a fresh interpreter outside of the checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def test_import_roost_takes_under_100_ms_and_imports_no_torch() -> None:
    code = (
        "import sys, time; a = time.perf_counter(); import roost; b = time.perf_counter();"
        "print(b - a, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    answers = [run_python(code).split() for _ in range(5)]
    assert min(float(seconds) for seconds, *_ in answers) < 0.1
    assert {tuple(rest) for _, *rest in answers} == {("False", "False")}


def test_all_modules_import_without_torch_and_none_stands_at_top_level() -> None:
    names = [name for name in modules() if not name.endswith("__main__")]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(sorted(set(sys.modules) & {{"torch", "numpy", "actors", "mesh", "rdma", "controller"}}))
"""
    assert run_python(code).strip() == "[]"


def test_the_face_has_at_most_30_names_and_each_can_be_had() -> None:
    import roost

    assert len(roost.__all__) <= 30
    for name in roost.__all__:
        assert getattr(roost, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        roost.nonsense  # noqa: B018


def layer(name: str) -> str | None:
    inner = name.removeprefix("roost.").removeprefix("roost")
    for candidate in sorted(LAYERS, key=len, reverse=True):
        if inner == candidate or inner.startswith(candidate + "."):
            return candidate
    return None


def imports(name: str, path: Path) -> set[str]:
    """The roost modules that a file imports, also inside functions, but not for type checking only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    known = modules()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                found.add(whole if whole in known else ".".join(base))
    return found


# Inside a function: what gives users a mesh, which stands above.
AT_CALL = {("roost.actors.context", "roost.mesh.local"), ("roost.actors.context", "roost.mesh.origin")}


def test_imports_go_one_way() -> None:
    wrong = []
    for name, path in modules().items():
        here = layer(name)
        if here is None:
            continue
        for target in imports(name, path):
            there = layer(target)
            if there is None or target in ("roost.mesh.shape", "roost.mesh.strides"):
                continue
            if LAYERS.index(there) > LAYERS.index(here) and (name, target) not in AT_CALL:
                wrong.append(f"{name} imports {target}")
    assert not wrong


def test_no_import_cycles_between_files_at_import_time() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):  # imports inside functions run later
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = [ast.Pass()]
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = [ast.Pass()]
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        targets = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
                for alias in node.names:
                    whole = ".".join([*base, alias.name])
                    target = whole if whole in known else ".".join(base)
                    if known.get(target) and known[target].name != "__init__.py":
                        targets.add(target)
        graph[name] = targets
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in graph.get(name, ()):
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("name", [name for name in modules() if not name.endswith("__main__")])
def test_docstring_examples_are_true(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
