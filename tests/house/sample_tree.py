"""Small trees of source files for the tests of the checkers."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write ``files`` (path to source, dedented) below ``root`` and return it."""
    for path, source in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(source), encoding="utf-8")
    return root
