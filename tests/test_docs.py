"""The code of the README and of the guide runs as it stands there: as a program, and typed line by line."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest

from latchwork import connect
from latchwork.coord import CountDownLatch
from tests.support.waiting import until
from tools.docstrings import Pages, as_list

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IN_SPARK = DOCS / "spark.md"  # its code runs in tests/spark/test_first_steps.py
FRONT = [ROOT / "README.md", DOCS / "getting-started.md", DOCS / "fencing.md"]
ABOUT_TESTS = DOCS / "guide" / "testing.md"


def blocks(page, language):
    """The blocks of code of a page that are marked as written in this language."""
    return [code for marked, code in BLOCK.findall(page.read_text()) if marked == language]


PAGES = [page for page in TEXTS if page != IN_SPARK and blocks(page, "python")]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def code_of(page, folder):
    """The page's Python, in a folder of its own.

    After each block comes an empty line: at a prompt, Enter ends a block whose last line is indented.
    """
    return "\n".join(blocks(page, "python")).replace("/tmp/", f"{folder}/").replace("9_000", "0")


def environment(folder):
    return {
        **os.environ, "PYTHONPATH": "", "PYTHONUNBUFFERED": "1", "LATCHWORK_STORE": f"sqlite:{folder}/default.db",
        "LATCHWORK_CLIENT": "shop",
    }  # fmt: skip


def run(code, folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], input=code, capture_output=True, text=True, timeout=120, check=False,
        env=environment(folder), cwd=folder,
    )  # fmt: skip


class Shell:
    """The commands of a page, run one after the other in a folder."""

    def __init__(self, page, folder, warm):
        self._page, self.folder, self._warm = page.read_text(), folder, warm

    def _words(self, command):
        assert command in self._page
        latchwork, *words = shlex.split(command)
        assert latchwork == "latchwork"
        return words

    def save(self, name, code):
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(code)

    def run(self, command):
        return self._warm.run(*self._words(command), env=environment(self.folder), cwd=str(self.folder))

    @contextmanager
    def worker(self, command):
        """Run a worker; Ctrl-C at the end. Yield the lines that it prints."""
        process = self._warm.start(*self._words(command), env=environment(self.folder), cwd=str(self.folder))
        alarm = Timer(120, process.kill)
        alarm.start()
        try:
            yield process.stdout
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            alarm.cancel()
            process.close()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (*FRONT, ABOUT_TESTS)], ids=lambda page: page.stem
)
def test_the_code_of_a_page_runs_as_a_program(page, tmp_path, warm):
    """`make long` types it into a process that has nothing loaded."""
    code = code_of(page, tmp_path)
    assert "import" in code, "the blocks are found"
    done = warm.run_program(code, tmp_path, environment(tmp_path))
    assert done.returncode == 0, done.stderr


def test_the_first_screen_of_the_readme_can_be_followed(tmp_path, warm):
    readme = ROOT / "README.md"
    (block,) = blocks(readme, "python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 21
    shell = Shell(readme, tmp_path, warm)
    shell.save("shop/jobs.py", block)
    assert "python shop/jobs.py" in readme.read_text()
    for _ in range(2):  # it can be run again
        done = run("", tmp_path, "shop/jobs.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    latch = CountDownLatch.get(connect(f"sqlite:{tmp_path}/default.db"), "shop", "monday")
    with shell.worker("latchwork worker shop.jobs:worker"):
        until(lambda: latch.missing() == {"stock"}, 60)
        waited = shell.run("latchwork latch wait monday --timeout 10")
        assert waited.stdout + waited.stderr == "timed out with 1 to go; missing: stock\n"
        assert "`timed out with 1 to go; missing: stock`" in readme.read_text()
        assert shell.run("""latchwork queue publish jobs '{"load": "stock", "day": "monday"}'""").returncode == 0
        assert shell.run("latchwork latch wait monday --timeout 60").returncode == 0


def test_getting_started_can_be_followed(tmp_path, warm):
    page = DOCS / "getting-started.md"
    shell, code, (repaired,) = Shell(page, tmp_path, warm), blocks(page, "python")[0], blocks(page, "py")
    shown = [line for block in blocks(page, "text") for line in block.splitlines() if line.startswith("order ")]
    worker = "latchwork worker shop.orders:worker"
    assert code.count("backoff=5") == 1
    code = code.replace("backoff=5", "backoff=0.2")
    shell.save("shop/orders.py", code)
    run("import shop.orders", tmp_path, "-")  # makes the queue, so that the publish need not wait for the worker
    with shell.worker(worker) as lines:
        assert shell.run("""latchwork queue publish orders '{"id": 7, "city": "Oslo"}'""").returncode == 0
        printed = [next(lines).strip() for _ in range(2)]
        assert shell.run("""latchwork queue publish orders '{"id": 8}'""").returncode == 0
        printed += [next(lines).strip() for _ in range(3)]
    parked = shell.run("latchwork queue peek orders --side parked").stdout
    for fact in ("exhausted", "KeyError: 'city'", '{"id": 8}'):
        assert fact in parked
        assert fact in page.read_text()
    last = code.rstrip().splitlines()[-1]
    shell.save("shop/orders.py", code.replace(last, f"    {repaired}"))
    with shell.worker(worker) as lines:
        assert shell.run("latchwork queue redrive orders").returncode == 0
        printed += [next(lines).strip() for _ in range(2)]
    assert printed == shown


def test_the_front_pages_can_be_followed_one_after_the_other_on_one_machine(tmp_path):
    for page in FRONT:
        done = run(code_of(page, tmp_path), tmp_path, "-")
        assert done.returncode == 0, f"{page.name}: {done.stderr}"


def test_the_page_about_tests_shows_what_its_code_prints(tmp_path, warm):
    shown = "".join(blocks(ABOUT_TESTS, "text")).splitlines()
    done = warm.run_program(code_of(ABOUT_TESTS, tmp_path), tmp_path, environment(tmp_path))
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) >= 5
    for line in printed:
        assert line in shown or f"`{line}`" in ABOUT_TESTS.read_text()


@pytest.mark.long
@pytest.mark.matrix
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_can_be_typed_into_an_interactive_session(page, tmp_path):
    done = run(code_of(page, tmp_path), tmp_path, "-i", "-q", "-c", "import sys; sys.ps1 = sys.ps2 = ''")
    assert done.returncode == 0
    assert "Error" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_what_is_marked_as_code_of_another_library_is_at_least_python(page):
    """It is marked `py`. What is only notation, such as a list of signatures, is marked `text`."""
    for code in blocks(page, "py"):
        compile(code, str(page), "exec")


def test_no_code_escapes():
    assert set(FRONT) <= set(PAGES)
    assert len(PAGES) >= 20
    marks = {mark for page in TEXTS for mark, _ in BLOCK.findall(page.read_text())}
    assert marks <= {"", "text", "python", "py", "java", "sql", "mermaid"}, "marks that a test or a reader knows"
    assert '"spark.md"' in (ROOT / "tests" / "spark" / "test_first_steps.py").read_text()


def test_every_link_of_the_docs_leads_to_a_page():
    checked = 0
    for page in TEXTS:
        for target in LINK.findall(page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
                checked += 1
    assert checked >= 30


def lists_in_running_text(text):
    """Lines that begin a list without an empty line before it: the site shows such a list as running text."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    blocks = [re.sub(r"^#.*\n", "", block) for block in re.split(r"\n\s*\n", prose)]
    item = re.compile(r"(?:-|\d+\.) ")
    return [
        line for block in blocks if not item.match(block.lstrip()) for line in block.splitlines() if item.match(line)
    ]


def test_every_list_of_the_docs_is_a_list_on_the_site():
    assert len(TEXTS) > 50, "the pages are found"
    assert {page.name: found for page in TEXTS if (found := lists_in_running_text(page.read_text()))} == {}
    assert lists_in_running_text("These:\n- one\n- two\n") == ["- one", "- two"]


def test_the_docs_site_lists_parameters_and_not_words_within_a_sentence():
    text = (
        "Wait.\n\ntimeout: seconds;\n  None = no limit\nfarm, name: text\n\nA farm that has no\nleader: its term ends."
    )
    assert as_list(text).splitlines()[2:] == [
        "- **timeout**: seconds;", "  None = no limit", "- **farm, name**: text", "",
        "A farm that has no", "leader: its term ends.",
    ]  # fmt: skip


def test_the_docs_site_shows_the_fields_of_a_value_and_the_numbers_of_named_defaults(tmp_path):
    griffe = pytest.importorskip("griffe")
    (tmp_path / "small.py").write_text(
        "LEASE = 10.0\nclass Put(Struct):\n    bin: str\n    value: int = 0\n"
        "class Base:\n    def act(self): ...\nclass Child(Base): ...\n"
        "def take(lease: float = LEASE, name: str = ANY): ...\n"
    )
    small = griffe.load("small", search_paths=[tmp_path], extensions=griffe.load_extensions(Pages))
    assert [(each.name, each.default) for each in small["Put"].parameters] == [("bin", None), ("value", "0")]
    assert [str(each.default) for each in small["take"].parameters] == ["10.0", "ANY"]
    assert list(small["Child"].inherited_members) == ["act"]


def test_a_diagram_stands_in_a_box_and_only_its_page_loads_what_draws_it(tmp_path, monkeypatch):
    diagrams = pytest.importorskip("tools.diagrams")
    monkeypatch.chdir(tmp_path)
    page = SimpleNamespace(url="protocols/once.html")
    drawn = diagrams.on_page_content('<p>a</p><pre class="mermaid"><code>b</code></pre>')
    assert drawn == '<p>a</p><div class="diagram"><pre class="mermaid"><code>b</code></pre></div>'
    html = drawn + '<script src="../assets/javascripts/bundle.1.js"></script>'
    assert diagrams.on_post_page(html, page=page) == html, "the script was not fetched"
    (tmp_path / "build" / "mermaid@1").mkdir(parents=True)
    (tmp_path / "build" / "mermaid@1" / "mermaid.min.js").touch()
    assert '<script src="../assets/mermaid.min.js"></script><script' in diagrams.on_post_page(html, page=page)
    assert diagrams.on_post_page("<p>no diagram</p>", page=page) == "<p>no diagram</p>"
