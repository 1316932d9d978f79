"""What the supervisor and its fork server say to each other.

Both hold one end of a socketpair of type SEQPACKET, so each message is one packet. A `Spawn` carries two descriptors
(SCM_RIGHTS): the worker's end of its channel and the end of the pipe that its stderr writes to.

A worker's number stays taken until the supervisor knows of its end: the server reports it with `Exited` and reaps it
only at the `Reap` that answers. So a signal that the supervisor sends by number can't hit a stranger.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

FORK_SERVER_ENTRY = "workers.forkserver:run_fork_server"
"""Where a fork server begins; resolved in the child only."""

FRESH_WORKER_ENTRY = "workers.fork_worker:run_entry"
"""Where a worker begins that was started by exec; resolved in the child only."""

KEEPER_ENTRY = "workers.keeper:run_keeper"
"""Where a keeper begins that was started by exec; resolved in the child only."""

KEEPER_PID_BYTES = 4
"""A keeper is told of workers through a pipe, of each by its number, in so many bytes, the highest first."""

MAX_MESSAGE_BYTES = 4096
MAX_BEGIN_BYTES = 64 * 1024
"""A `Begin` alone may be so long."""

SPAWN_DESCRIPTORS = 2


class ForkFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the messages."""


class Begin(ForkFrame, frozen=True, kw_only=True, tag="begin"):
    """The first message, and only that: ``conceal`` are the environment variables that hold keys.

    Nothing is forked before they are overwritten and unset.
    """

    conceal: tuple[str, ...] = ()


class Spawn(ForkFrame, frozen=True, kw_only=True, tag="spawn"):
    """Fork a worker of ``kind`` that runs ``entry`` ("module:function"). ``number`` is new for each request."""

    number: int
    entry: str
    kind: str


class Reap(ForkFrame, frozen=True, kw_only=True, tag="reap"):
    """The end of worker ``pid`` is known: its number may be given back to the system."""

    pid: int


class Serving(ForkFrame, frozen=True, kw_only=True, tag="serving"):
    """All modules are imported; requests are taken from now on. Those that came before were kept.

    ``keeper`` is the number of the server's own child that outlives it (see `workers.keeper`).
    """

    keeper: int


class Spawned(ForkFrame, frozen=True, kw_only=True, tag="spawned"):
    """The request ``number`` became the process ``pid``, which leads a process group of its own."""

    number: int
    pid: int


class SpawnFailed(ForkFrame, frozen=True, kw_only=True, tag="spawn_failed"):
    """The request ``number`` came to nothing; ``errno`` says why."""

    number: int
    errno: int


class Exited(ForkFrame, frozen=True, kw_only=True, tag="exited"):
    """Worker ``pid`` has ended and what was left of its process group is killed; it waits for its `Reap`."""

    pid: int
    code: int | None
    signal: int | None


ForkRequest: TypeAlias = Spawn | Reap
ForkNotice: TypeAlias = Serving | Spawned | SpawnFailed | Exited

encode_fork_frame = msgspec.msgpack.Encoder().encode
begin_decoder: msgspec.msgpack.Decoder[Begin] = msgspec.msgpack.Decoder(Begin)
request_decoder: msgspec.msgpack.Decoder[ForkRequest] = msgspec.msgpack.Decoder(ForkRequest)
notice_decoder: msgspec.msgpack.Decoder[ForkNotice] = msgspec.msgpack.Decoder(ForkNotice)
