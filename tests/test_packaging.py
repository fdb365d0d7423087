"""The folder `src` is the package `latchwork`: it hides nothing of the standard library, and a wheel has all of it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

import latchwork
from tools.release import PAGES, faults_of_sdist, faults_of_wheel, modules
from tools.shape import tree_of

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FOUND_BY_SPARK = "pyspark_latchwork/__init__.py"
BANNED = {"time", "random", "uuid", "secrets", "datetime.datetime.now", "threading.Thread", "threading.Event"}
LAST = {name.rpartition(".")[2] for name in BANNED}
MAY_BE_BANNED = re.compile(
    rf"(import|from) .*\b({'|'.join({name.partition('.')[0] for name in BANNED})})\b|datetime\.now"
)
"""A file without a match has nothing that is banned, and need not be parsed, which takes seconds for all."""
FOLDERS = ("store", "coord", "queue", "testing", "spark", "observe", "aio", "asgi", "console", "django")
PUBLIC = ("latchwork", *(f"latchwork.{name}" for name in FOLDERS))
"""Without `latchwork.airflow`: Airflow is not in the lock."""
_CHECK = """
import sys, queue
from pathlib import Path
import latchwork
import latchwork.queue, latchwork.store, latchwork.coord
stdlib = Path(queue.__file__)
assert stdlib.name == "queue.py" and hasattr(queue, "SimpleQueue"), stdlib
assert latchwork.queue is not queue
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"aerospike", "kazoo", "pyspark", "typer", "rich"}, "each is loaded where it is used"
assert (Path(latchwork.__file__).parent / "py.typed").exists()
from latchwork.store import Exists, Key, Put
store = latchwork.connect("memory:")
store.operate(Key("s", "k"), Put("n", 1), exists=Exists.CREATE)
print(Path(latchwork.__file__).parent)
"""


def _run(*arguments, **options):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without a network from a copy of what git would hand out."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "latchwork"
    (copy / "src").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for source in [*(ROOT / "src" / name for name in modules()), ROOT / FOUND_BY_SPARK]:
        target = copy / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    backend = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    _run("-c", backend, str(folder), cwd=copy)
    (built,) = folder.glob("*.whl")
    return built


def test_the_standard_librarys_queue_is_imported_from_the_installation_that_runs_the_tests(tmp_path):
    assert Path(_run("-c", _CHECK, cwd=tmp_path)) == ROOT / "src"


def test_the_standard_librarys_queue_is_imported_from_a_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    found = _run("-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n{_CHECK}", cwd=tmp_path)
    assert Path(found) == tmp_path / "site" / "latchwork"


def test_a_wheel_holds_every_module_and_its_types_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert list(faults_of_wheel(names)) == []
    without = [name for name in names if name != "latchwork/py.typed"]
    assert list(faults_of_wheel([*without, "tests/test_retry.py"])) == [
        "the wheel lacks latchwork/py.typed",
        "the wheel has tests/test_retry.py",
    ]


def test_an_sdist_without_a_page_or_with_tests_that_lack_their_support_is_refused():
    names = [f"l-1/{name}" for name in (*PAGES, FOUND_BY_SPARK, *(f"src/{each}" for each in modules()))]
    assert list(faults_of_sdist(names)) == []
    names.remove("l-1/SECURITY.md")
    assert list(faults_of_sdist([*names, "l-1/tests/test_retry.py"])) == [
        "the sdist lacks SECURITY.md",
        "the sdist has tests/test_retry.py",
    ]


def test_a_wheel_carries_its_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_package_offers_what_it_lists_and_loads_the_client_on_demand():
    for name in latchwork.__all__:
        assert getattr(latchwork, name) is not None
    assert latchwork.AerospikeStore.__name__ == "AerospikeStore"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        latchwork.Nothing  # noqa: B018 - to see it fail


def test_every_name_that_a_package_offers_is_the_one_that_a_type_checker_sees():
    checked = 0
    for path in SOURCES:
        text = path.read_text()
        if path.name != "__init__.py" or "offer(" not in text:
            continue
        package = ".".join(("latchwork", *path.relative_to(ROOT / "src").parts[:-1]))
        module = importlib.import_module(package)
        (typed,) = (node for node in ast.parse(text).body if isinstance(node, ast.If))
        for node in typed.body:
            home = importlib.import_module("." * node.level + node.module, package)
            for alias in node.names:
                assert getattr(module, alias.name) is getattr(home, alias.name)
                assert alias.name in module.__all__
                assert alias.name in dir(module)
                checked += 1
    assert checked >= 40


def _public(module):
    """What a package offers, and what its classes do: dotted names, each with its docstring."""
    for name in module.__all__:
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        yield f"{module.__name__}.{name}", inspect.getdoc(thing)
        for member, value in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            made_here = getattr(getattr(value, "fget", value), "__module__", None) or ""
            if not member.startswith("_") and callable(getattr(value, "fget", value)) and "latchwork" in made_here:
                yield f"{module.__name__}.{name}.{member}", inspect.getdoc(value)


def test_all_that_is_public_says_what_it_does():
    modules = [importlib.import_module(name) for name in PUBLIC]
    said = {name: text for module in modules for name, text in _public(module)}
    assert [name for name, text in said.items() if not text] == []
    assert len(said) >= 200


# ---- what the sources import


@cache
def _imports(path):
    """Return all that a file imports, dotted; what is relative from the package's root, with a leading dot."""
    package, found = path.relative_to(ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT).parts[:-1], []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join([*up, *([node.module] if node.module else [])])
            found += [("." if node.level else "") + f"{base}.{alias.name}".lstrip(".") for alias in node.names]
    return found


def _uses(path):
    """Every dotted name that a file uses and that may be a banned one, such as `threading.Thread`."""
    nodes = ast.walk(tree_of(path))
    return {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute) and node.attr in LAST}


def _banned(path):
    """What a file imports or uses and may not."""
    imported = {name for name in _imports(path) if name.partition(".")[0] in BANNED or name in BANNED}
    return imported | (_uses(path) & BANNED)


def test_clocks_ids_chance_and_threads_come_through_the_seams_alone():
    checked = 0
    for path in SOURCES:
        if path.name == "seams.py" or path.parent.name == "testing":  # which replaces them, by chance with a seed
            continue
        if MAY_BE_BANNED.search(path.read_text()):
            assert not _banned(path), path
            checked += 1
    assert checked >= 30
    seams = set(_imports(ROOT / "src" / "seams.py"))
    assert {"time", "random"} <= seams, "the check sees what it looks for"


@pytest.mark.parametrize(("folder", "other"), [("tests", "benchmarks"), ("benchmarks", "tests")])
def test_tests_and_benchmarks_do_not_import_each_other(folder, other):
    named = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)
    imports = {path: set(named.findall(path.read_text())) for path in (ROOT / folder).rglob("*.py")}
    assert [path for path, names in imports.items() if other in names] == []
    assert "tools" in set().union(*imports.values()), "the check sees what it looks for"


@pytest.mark.parametrize("layer", ["coord", "queue", "store", "spark", "cli", "console", "observe"])
def test_a_folder_of_tests_lies_as_the_source_lies(layer):
    """Each folder of tests is named after a folder or a module of the source."""
    folders = [path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests" / layer).rglob("test_*.py")]
    source = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*")}
    assert {str(one) for one in folders if one not in source and one.with_suffix(".py") not in source} == set()
