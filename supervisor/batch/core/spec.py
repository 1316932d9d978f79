"""What a job is: that of it which, if it were changed, would make its old verdict worthless."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from protocol.agent_spec import Trust
from supervisor.batch.core.job_file import Check
from supervisor.batch.core.words import Isolation


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that the hash is made of. How much effort may go into a job (time, retries, budget) is none of them.

    ``cwd`` is a real path, ``base`` the commit that a worktree is made of, ``agent`` to ``trust`` are what they come to
    with flags and defaults. ``env`` has a digest of each value: the values themselves are written nowhere.
    """

    prompt: str
    cwd: str
    isolation: Isolation
    base: str | None
    agent: str
    model: str
    provider: str
    base_url: str
    trust: Trust
    max_iterations: int | None
    env: dict[str, str]
    check: Check | None

    def canonical(self) -> bytes:
        """JSON with sorted keys."""
        return msgspec.json.encode(self, order="sorted")

    def sha256(self) -> str:
        """The hash of the canonical form, in hex."""
        return hashlib.sha256(self.canonical()).hexdigest()


def digests(variables: Mapping[str, str]) -> dict[str, str]:
    """Each variable with the hash of its value."""
    return {name: hashlib.sha256(value.encode()).hexdigest() for name, value in variables.items()}


def shard_of(job_id: str, shards: int) -> int:
    """The shard, from 1, that a job belongs to."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()) % shards + 1
