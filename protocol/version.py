"""The version of the installed distribution.

``importlib.metadata`` would answer too, but costs two bare interpreter starts to import; ``--version`` is to be quick.
"""

from __future__ import annotations

import os
import re
import sys

UNKNOWN_VERSION = "0+unknown"
"""What is said where corral was never installed, only found on the path."""

_METADATA_FOLDER = re.compile(r"corral-\d[^-]*\.dist-info")


def installed_version() -> str:
    """The ``Version`` of the ``corral`` distribution; `UNKNOWN_VERSION` if it has no metadata.

    The folder that this package lies in comes first, so that of two installations each gives its own.
    Source: core metadata, and PEP 376 for the place.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is slow to import
    for folder in (home, *sys.path):
        version = _version_in(folder)
        if version is not None:
            return version
    return UNKNOWN_VERSION


def _version_in(folder: str) -> str | None:
    try:
        names = [name for name in os.listdir(folder or ".") if _METADATA_FOLDER.fullmatch(name)]  # noqa: PTH208 - as above
        for name in names:
            with open(f"{folder or '.'}/{name}/METADATA", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - as above
                for line in lines:
                    if line.startswith("Version:"):
                        return line.removeprefix("Version:").strip()
    except OSError:
        pass  # an entry of sys.path that is a zip file, or is gone
    return None
