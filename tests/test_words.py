"""Docstrings, comments, errors and pages are plain English that stands by itself (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PAGES = [*(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"))]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A docstring that opens so sends the reader to another one, or begins in the middle of a sentence. Begin a function's
# with a verb ("Return the ..."), a class's or a property's with the thing ("The result of ..."), a predicate's with
# "Whether".
OPENINGS = re.compile(
    r"(The same|Those|These|That|What|Who|Whose|Where|When|Why|Which|If|Once|It|They|Nothing|Nobody|As|In|Of|For)\b"
)
# A function does something, or returns it: so no noun, and no third person.
NOUNS = re.compile(
    r"(The|An?|One|All|Every|Each|How|Up to|At|On|Only|After|Before|About|Both|More|Some|Something|Another|Under|While|"
    r"True|False|Raises|Refuses|Refused|Reads|Says|Keeps|Seconds|Messages|Slots|Our)\b"
)
# A class is a thing: it does not open with what it does.
THIRD_PERSONS = re.compile(
    r"(Appends|Asks|Calls|Checks|Copies|Counts|Decides|Draws|Formats|Gives|Handles|Holds|Keeps|Looks|Makes|Moves|Puts|"
    r"Reads|Removes|Renews|Reports|Returns|Runs|Sends|Shortens|Sweeps|Takes|Tries|Waits|Watches|Wraps|Writes)\b"
)
# What "Whether" describes is a question with an answer: a truth value, or an expression of one.
PREDICATES = ("bool", "bool | None", "Expr", "list[bool]")
# No metaphor stands for the field's term, and one word for one thing. Write: candidates (roster), attempt or
# acquisition (wish to have), remove (strike off), take part in an election (stand for), no limit (for ever, of a wait),
# result or outcome (what came of it), another process (somebody else), again (anew), release (let go of).
METAPHORS = re.compile(
    r"\b(roster|one wish to|strike off|struck off|stands? for (office|election)|what (came|comes|became|becomes) of|"
    r"of it all|whomever|somebody|anybody|whoever|begins? anew|let(s|ting)? go|as good as|worth while|hears? of|befell|"
    r"bur(y|ied|ies)|in (his|her|its|whose|somebody's) hands|for ever)\b",
    re.IGNORECASE,
)
# Names of functions, classes and modules are the field's terms: reset (anew), record or log (tell), release or abandon
# (let go), write tombstones (bury), pending (aside), stamp rules (hands), criteria (wish), start (hire).
PRIVATE_WORDS = re.compile(
    r"(^|_)(anew|tell|tells|told|bury|buried|aside|hands|let_go|letting_go|owe|owed|hire|staff|heed|restless|nobody|"
    r"attendance|books)(_|$)|Anew|Troubles|Teller|Aside|Hands|Looks|Nobody|Attendance"
)


def docstrings(folder: Path):
    """Where each docstring is, its definition, and its text."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
            if text:
                yield f"{path.relative_to(SRC)}:{getattr(node, 'name', 'module')}", node, text


def is_verb(node: ast.AST) -> bool:
    """Whether it is a function that is called for what it does: no property, no fixture, no check of a contract."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith(("test_", "check_")):
        return False
    return not any(re.search("property|fixture", ast.unparse(decorator)) for decorator in node.decorator_list)


def test_no_docstring_opens_with_words_that_make_the_reader_look_elsewhere():
    found = [(where, node, text) for where, node, text in docstrings(SRC) if not isinstance(node, ast.Module)]
    assert len(found) > 1500, "docstrings were found at all"
    assert [f"{where}: {text[:80]}" for where, _, text in found if OPENINGS.match(text)] == []


def test_a_docstring_of_a_function_opens_with_a_verb():
    found = [(where, text) for where, node, text in docstrings(SRC) if is_verb(node)]
    assert len(found) > 1000, "functions were found at all"
    assert [f"{where}: {text[:80]}" for where, text in found if NOUNS.match(text)] == []


def test_a_docstring_of_a_class_opens_with_a_noun():
    found = [(where, text) for where, node, text in docstrings(SRC) if isinstance(node, ast.ClassDef)]
    assert len(found) > 300, "classes were found at all"
    assert [f"{where}: {text[:80]}" for where, text in found if THIRD_PERSONS.match(text)] == []


def test_only_a_predicate_is_described_by_whether():
    functions = [each for each in docstrings(SRC) if isinstance(each[1], ast.FunctionDef)]
    found = [(where, node) for where, node, text in functions if text.startswith("Whether")]
    assert len(found) > 100, "predicates were found at all"
    assert [where for where, node in found if node.returns and ast.unparse(node.returns) not in PREDICATES] == []


def test_no_docstring_speaks_in_metaphors():
    found = list(docstrings(SRC))
    assert [f"{where}: {word[0]}" for where, _, text in found for word in METAPHORS.finditer(text)] == []


def names(folder: Path):
    """Each name that a module, a class or a function of the folder has, but for the checks of the contract."""
    for path in sorted(folder.rglob("*.py")):
        where = str(path.relative_to(SRC))
        yield where, path.stem
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, DEFINITIONS[1:]) and not node.name.startswith("test_"):
                yield where, node.name


def test_no_name_is_a_private_word():
    found = list(names(SRC))
    assert len(found) > 2000, "names were found at all"
    assert [f"{where}: {name}" for where, name in found if PRIVATE_WORDS.search(name)] == []


@pytest.mark.parametrize("name", ["begin_anew", "_told", "tell_each", "Hands", "let_go", "_hire"])
def test_a_private_word_in_a_name_is_noticed(name):
    assert PRIVATE_WORDS.search(name)
    assert not PRIVATE_WORDS.search("threshold")


def comments(folder: Path):
    """Where each comment is, and its text."""
    for path in sorted(folder.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "# " in line and (text := line.split("# ", 1)[1]):
                yield f"{path.relative_to(SRC)}:{number}", text


def test_no_comment_speaks_in_metaphors():
    found = list(comments(SRC))
    assert len(found) > 500, "comments were found at all"
    assert [f"{where}: {word[0]}" for where, text in found for word in METAPHORS.finditer(text)] == []


def test_no_page_speaks_in_metaphors():
    assert len(PAGES) > 50, "the pages are found"
    lines = [(page, n, line) for page in PAGES for n, line in enumerate(page.read_text().splitlines(), 1)]
    assert [f"{page.name}:{n}: {word[0]}" for page, n, line in lines for word in METAPHORS.finditer(line)] == []


def errors(tree: ast.AST):
    """The line and the text of each string of a `raise` statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_no_error_speaks_in_metaphors_or_of_those():
    found = [(path, *each) for path in sorted(SRC.rglob("*.py")) for each in errors(ast.parse(path.read_text()))]
    assert len(found) > 800, "errors were found at all"
    bad = re.compile(f"{METAPHORS.pattern}|\\bthose\\b", re.IGNORECASE)
    assert [f"{path.relative_to(SRC)}:{n}: {word[0]}" for path, n, text in found for word in bad.finditer(text)] == []


@pytest.mark.parametrize("text", ["Whoever may write.", "It waits for ever.", "the wish that others let go first"])
def test_a_metaphor_on_a_page_and_in_an_error_is_noticed(text):
    ((_, found),) = errors(ast.parse(f"raise ValueError({text!r})"))
    assert METAPHORS.search(found)


@pytest.mark.parametrize("text", ["Those of one queue.", "What came of it.", "The same for headers."])
def test_an_opening_that_is_banned_is_noticed(text):
    assert OPENINGS.match(text)


def test_a_function_that_is_described_as_a_thing_is_noticed():
    tree = ast.parse('def depth():\n    """How much is in it."""\n\n@property\ndef name():\n    """The name."""')
    assert [is_verb(node) for node in tree.body] == [True, False]
    assert NOUNS.match("How much is in it.")
