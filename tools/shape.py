"""Counts the shape of the source: `python tools/shape.py [FOLDER]`; the default is the folder `src` beside this one.

Code lines are lines with code: no docstrings, comments or blank lines. A floor is a step of the longest way down the
imports between the parts of a folder, each folder in it taken as a whole; an arrow is one part that imports another.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

Graph = dict[Path, set[Path]]
CLOSURES = {
    "publish, receive, ack": "queue/sharded/queue.py",
    "receive, ack": "queue/sharded/subqueue.py",
    "a lock": "coord/lock.py",
    "a worker": "queue/sharded/consumer/worker.py",
}
"""What a user asks for, and the file where a reader of it begins."""
RELATIVE_IMPORT = re.compile(r"^ *(from \.[\w.]* import (?:\([^)]*\)|.*))", re.MULTILINE)
"""As `ruff format` writes it, on a line of its own."""


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def imports_of(path: Path, root: Path) -> set[Path]:
    """The files of the source that a file imports, imports for types alone included."""
    package = path.relative_to(root).parts[:-1]
    found = set()
    # Only these statements are parsed: the trees of all files take seconds.
    for node in ast.parse("\n".join(RELATIVE_IMPORT.findall(path.read_text()))).body:
        assert isinstance(node, ast.ImportFrom)  # noqa: S101 - the expression finds nothing else
        base = root.joinpath(*package[: len(package) + 1 - node.level], *(node.module or "").split("."))
        for name in node.names:
            places = (base / f"{name.name}.py", base / name.name / "__init__.py", base.with_suffix(".py"))
            target = next((place for place in places if place.exists()), base / "__init__.py")
            if target.exists() and target != path:
                found.add(target)
    return found


def circles_of(graph: Graph) -> list[list[Path]]:
    """The groups of files that import one another, directly or through others (Tarjan's algorithm)."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    circles = []

    def visit(node: Path) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                circles.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return circles


def inside(folder: Path, graph: Graph) -> Graph:
    """The imports between the files and the folders that lie in a folder, each folder taken as a whole."""
    files = [path for path in graph if path.is_relative_to(folder)]
    part = {path: folder / path.relative_to(folder).parts[0] for path in files}
    found: Graph = {one: set() for one in part.values()}
    for path in files:
        found[part[path]] |= {part[target] for target in graph[path] if target in part} - {part[path]}
    return found


def folder_circles_of(graph: Graph) -> list[list[Path]]:
    """The circles in which a folder takes part: it imports another part of its parent, which imports it in turn."""
    folders = sorted({path.parent for path in graph})
    return [circle for folder in folders for circle in circles_of(inside(folder, graph)) if not _files(circle)]


def _files(circle: list[Path]) -> bool:
    return all(path.suffix for path in circle)


def floors_of(graph: Graph) -> int:
    """The parts on the longest way down the imports. A circle counts as one floor."""
    circle = {path: circle[0] for circle in circles_of(graph) for path in circle}
    height: dict[Path, int] = {}

    def floor(part: Path) -> int:
        if part not in height:
            below = {circle.get(other, other) for one in graph if circle.get(one, one) == part for other in graph[one]}
            height[part] = 1 + max((floor(other) for other in below - {part}), default=0)
        return height[part]

    return max((floor(circle.get(part, part)) for part in graph), default=0)


def closure_of(start: Path, graph: Graph) -> set[Path]:
    """The files that a reader of a file meets: it, what it imports, what that imports."""
    found, following = {start}, [start]
    while following:
        more = graph[following.pop()] - found
        found |= more
        following += more
    return found


@cache
def code_lines(path: Path) -> int:
    """The lines of a file that have code."""
    tree, lines = tree_of(path), path.read_text().splitlines()
    text: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(bool(line.strip()) and line.lstrip()[0] != "#" and n not in text for n, line in enumerate(lines, 1))


def import_lines(path: Path) -> int:
    """The lines of a file that import."""
    nodes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def used_once(path: Path) -> int:
    """The private functions of a file, methods aside, that it names once."""
    tree = tree_of(path)
    private = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] == "_"]
    names = Counter(n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    names.update(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
    return sum(names[name] == 1 for name in private)


def protocols_of(files: list[Path]) -> tuple[int, int]:
    """The protocols, and those of them whose members one class alone has."""
    nodes = [node for path in files for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base).split("[")[0] for base in node.bases} for node in nodes}
    members = {node.name: _members(node) for node in nodes}
    for _ in range(5):  # what is inherited, a level at a time
        members = {name: own.union(*(members.get(base, ()) for base in bases[name])) for name, own in members.items()}
    protocols = [name for name in members if "Protocol" in bases[name]]
    having = [sum(members[name] <= members[one] for one in members if one not in protocols) for name in protocols]
    return len(protocols), having.count(1)


def _members(node: ast.ClassDef) -> set[str]:
    found = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    found |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return found | {one.attr for one in stored}


def main() -> None:
    """Print the table of the folders, then the numbers of the whole."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    files = sorted(root.rglob("*.py"))
    if not files:
        sys.exit(f"no Python file in {root}; usage: python tools/shape.py [FOLDER]")
    graph = {path: imports_of(path, root) for path in files}
    print(f"{'folder':32}{'files':>6}{'code':>8}{'floors':>8}{'arrows':>8}")
    for folder in sorted({path.parent for path in files}):
        here, parts = [path for path in files if path.parent == folder], inside(folder, graph)
        parts.pop(folder / "__init__.py", None)  # it offers the names of the others
        parts = {one: below & parts.keys() for one, below in parts.items()}
        row = len(here), sum(map(code_lines, here)), floors_of(parts), sum(map(len, parts.values()))
        print(f"{folder.relative_to(root)!s:32}{row[0]:>6}{row[1]:>8}{row[2]:>8}{row[3]:>8}")
    code, imports = sum(map(code_lines, files)), sum(map(import_lines, files))
    functions = sum(isinstance(node, ast.FunctionDef) for path in files for node in ast.walk(tree_of(path)))
    protocols, alone = protocols_of(files)
    print(f"{'sum':32}{len(files):>6}{code:>8}")
    print(f"imports: {imports} lines, {imports / code:.0%} of the code")
    print(f"protocols: {protocols}, {alone} of them with one implementation")
    print(f"private functions used once: {sum(map(used_once, files))} of {functions} functions")
    for name, start in CLOSURES.items():
        whole = closure_of(root / start, graph)
        above = [path for path in whole if not path.is_relative_to(root / "store")]
        counts = [f"{len(some)} files, {sum(map(code_lines, some))} lines" for some in (above, whole)]
        print(f"{name}: {counts[0]} without the store, {counts[1]} with it")
    for kind, circles in (("files", circles_of(graph)), ("folders", folder_circles_of(graph))):
        print(f"circles of {kind}: {len(circles)}")
        for group in circles:
            print("  " + ", ".join(str(path.relative_to(root)) for path in group))


if __name__ == "__main__":
    main()
