"""What an agent knows of the files it has read or written.

A file that somebody else changed in between must not be edited from memory: the model would undo what it never saw.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path


def digest_of(content: bytes) -> str:
    """The hash that stands for ``content``: 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class FileMemory:
    """The hashes of file contents as the agent last saw them, by absolute path without symbolic links.

    One for the life of a process; ``digests`` takes up what an earlier process of the same agent knew. ``lock`` is held
    by a tool that reads a file, changes it and writes it back, because the calls of one reply run at once, in threads.
    """

    def __init__(self, digests: Mapping[str, str] | None = None) -> None:
        self._digests = dict(digests or {})
        self._news: dict[str, str] = {}
        self.lock = threading.Lock()

    def remember(self, path: Path, content: bytes) -> None:
        """The agent has now seen ``content`` as the whole content of ``path``."""
        self._digests[str(path)] = self._news[str(path)] = digest_of(content)

    def knows(self, path: Path) -> bool:
        """Whether the agent has seen this file."""
        return str(path) in self._digests

    def is_stale(self, path: Path, content: bytes) -> bool:
        """Whether the agent has seen this file, but with another content than ``content``."""
        seen = self._digests.get(str(path))
        return seen is not None and seen != digest_of(content)

    def take_news(self) -> dict[str, str]:
        """The hashes that are new since the last call, to be kept for a later process of the same agent."""
        news, self._news = self._news, {}
        return news
