"""The size limits: what keeps a module readable at one sitting.

A function has at most 60 lines and nine of ten in a package have fewer than 35; a class has at most 200 lines, a
module at most 600. Lines are counted as they stand, docstrings and comments included, decorators not.

    python -m scripts.size_limits [ROOT]     prints what is over, one a line; exit 1 where there is any
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = ("protocol", "supervisor", "workers", "tests", "scripts")
LONGEST_FUNCTION = 60
LONGEST_CLASS = 200
LONGEST_MODULE = 600
NINE_OF_TEN_FUNCTIONS_UNDER = 35


def oversizes(root: Path) -> list[str]:
    """A sentence for each thing below ``root`` that is over its limit, in the order of the packages and files."""
    return [sentence for package in PACKAGES for sentence in _oversizes_of_package(root, package)]


def _oversizes_of_package(root: Path, package: str) -> Iterator[str]:
    lengths: list[int] = []
    for file in sorted((root / package).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        source = file.read_text(encoding="utf-8")
        yield from over_limit(path, source)
        lengths += function_lengths(source)
    ninth = ninth_decile(lengths)
    if ninth >= NINE_OF_TEN_FUNCTIONS_UNDER:
        yield (
            f"{package}: nine of ten functions must have fewer than {NINE_OF_TEN_FUNCTIONS_UNDER} lines,"
            f" the ninth decile is {ninth}"
        )


def over_limit(path: str, source: str) -> Iterator[str]:
    """What in one module is too long; raises SyntaxError."""
    lines = len(source.splitlines())
    if lines > LONGEST_MODULE:
        yield f"{path}: a module of {lines} lines, at most {LONGEST_MODULE}"
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > LONGEST_FUNCTION:
            yield f"{path}:{node.lineno}: {node.name} has {_length(node)} lines, a function at most {LONGEST_FUNCTION}"
        elif isinstance(node, ast.ClassDef) and _length(node) > LONGEST_CLASS:
            yield f"{path}:{node.lineno}: {node.name} has {_length(node)} lines, a class at most {LONGEST_CLASS}"


def function_lengths(source: str) -> list[int]:
    """The lines of each function of a module, nested ones and methods too; raises SyntaxError."""
    tree = ast.parse(source)
    return [_length(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def ninth_decile(lengths: Sequence[int]) -> int:
    """The length that nine of ten do not exceed (nearest rank); 0 for none."""
    if not lengths:
        return 0
    rank = -(-len(lengths) * 9 // 10)
    return sorted(lengths)[rank - 1]


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main(arguments: list[str]) -> int:
    """Print what is over its limit below the folder given, or the checkout; 1 where there is any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = oversizes(root)
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
