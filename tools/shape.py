"""Counts the shape of the source: files and lines a folder, imports between folders, and circles of files and folders.

Run it as `python -m tools.shape [FOLDER]`; the default is the folder `src` beside this one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path


def imports_of(path: Path, root: Path) -> set[Path]:
    """The files of the source that a file imports, imports for types alone included."""
    package = path.relative_to(root).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = root.joinpath(*package[: len(package) + 1 - node.level], *(node.module or "").split("."))
        for name in node.names:
            places = (base / f"{name.name}.py", base / name.name / "__init__.py", base.with_suffix(".py"))
            target = next((place for place in places if place.exists()), base / "__init__.py")
            if target.exists() and target != path:
                found.add(target)
    return found


def circles_of(graph: dict[Path, set[Path]]) -> list[list[Path]]:
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


def inside(folder: Path, graph: dict[Path, set[Path]]) -> dict[Path, set[Path]]:
    """The imports between the files and the folders that lie in a folder, each folder taken as a whole."""
    files = [path for path in graph if path.is_relative_to(folder)]
    part = {path: folder / path.relative_to(folder).parts[0] for path in files}
    found: dict[Path, set[Path]] = {one: set() for one in part.values()}
    for path in files:
        found[part[path]] |= {part[target] for target in graph[path] if target in part} - {part[path]}
    return found


def folder_circles_of(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """The circles in which a folder takes part: it imports another part of its parent, which imports it in turn."""
    folders = sorted({path.parent for path in graph})
    return [circle for folder in folders for circle in circles_of(inside(folder, graph)) if not _files(circle)]


def _files(circle: list[Path]) -> bool:
    return all(path.suffix for path in circle)


def main() -> None:
    """Print the tables."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    files = sorted(root.rglob("*.py"))
    graph = {path: imports_of(path, root) for path in files}
    folders: Counter[Path] = Counter(path.parent.relative_to(root) for path in files)
    lines: Counter[Path] = Counter()
    for path in files:
        lines[path.parent.relative_to(root)] += path.read_text().count("\n")
    pairs = [(one, other) for one, targets in graph.items() for other in targets]
    within = Counter(one.parent.relative_to(root) for one, other in pairs if one.parent == other.parent)
    print(f"{'folder':32}{'files':>6}{'lines':>8}{'imports within':>16}")
    for folder in sorted(folders):
        print(f"{folder!s:32}{folders[folder]:>6}{lines[folder]:>8}{within[folder]:>16}")
    print(f"{'sum':32}{sum(folders.values()):>6}{sum(lines.values()):>8}{sum(within.values()):>16}")
    print(f"imports between folders: {len(pairs) - sum(within.values())}")
    for what, circles in (("files", circles_of(graph)), ("folders", folder_circles_of(graph))):
        print(f"circles of {what}: {len(circles)}")
        for group in circles:
            print("  " + ", ".join(str(path.relative_to(root)) for path in group))


if __name__ == "__main__":
    main()
