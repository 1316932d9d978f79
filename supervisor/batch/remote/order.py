"""What is to be done elsewhere and what came of it: structs of the batch itself, as bytes.

They hold types that msgspec does not know; here these are told as others that it does.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from protocol.agent_spec import AgentSpec
from supervisor.agents import AgentCatalog
from supervisor.batch.core.words import Isolation
from supervisor.batch.plan import PlannedJob
from supervisor.batch.report import AttemptReport
from supervisor.provider_table import ProviderEntry, ProviderTable

_NIL = msgspec.Raw(b"\xc0")


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What of a repository matters to a worktree and is in no commit.

    ``shallow``, ``exclude`` and ``attributes`` are the contents of those files; ``settings`` are a few of its own
    settings. Nothing in here names an address or a key. Source: gitrepository-layout(5).
    """

    shallow: str = ""
    exclude: str = ""
    attributes: str = ""
    settings: dict[str, str] = {}  # msgspec copies it


class ParcelName(msgspec.Struct, frozen=True, kw_only=True):
    """A folder (``copy``) or a commit with its history (``worktree``) that is brought to a machine once.

    ``key`` is a file name that no other parcel of the same run has.
    """

    kind: Isolation
    key: str
    extras: Extras = Extras()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt ``n`` of ``job``. ``parcel`` None: the job's folder is there already. ``copy_max`` is in bytes."""

    job: PlannedJob
    n: int
    parcel: ParcelName | None
    copy_max: int


def _encode_other(value: object) -> object:
    if isinstance(value, Path):
        return os.fsencode(value)
    if isinstance(value, AgentCatalog):
        return [value.specs(), value.notes]
    if isinstance(value, ProviderTable):
        return list(value)
    raise TypeError(f"{type(value).__name__} does not travel")


def _decode_other(kind: type, value: object) -> object:
    if issubclass(kind, Path):
        return Path(os.fsdecode(msgspec.convert(value, bytes)))
    if kind is AgentCatalog:
        specs, notes = msgspec.convert(value, tuple[dict[str, AgentSpec], tuple[str, ...]])
        return AgentCatalog(specs, notes)
    if kind is ProviderTable:
        return ProviderTable(msgspec.convert(value, list[ProviderEntry]))
    raise TypeError(f"{kind.__name__} does not travel")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_order_decoder = msgspec.msgpack.Decoder(Order, dec_hook=_decode_other)
_report_decoder = msgspec.msgpack.Decoder(AttemptReport, dec_hook=_decode_other)


def encode_order(order: Order) -> bytes:
    """The order as bytes; the job's metadata, which is nobody's business there, stays here."""
    line = msgspec.structs.replace(order.job.line, metadata=_NIL)
    job = msgspec.structs.replace(order.job, line=line)
    return _encoder.encode(msgspec.structs.replace(order, job=job))


def decode_order(body: bytes) -> Order:
    """Raises `msgspec.MsgspecError`."""
    return _order_decoder.decode(body)


def encode_report(report: AttemptReport) -> bytes:
    """The report as bytes."""
    return _encoder.encode(report)


def decode_report(body: bytes) -> AttemptReport:
    """Raises `msgspec.MsgspecError`."""
    return _report_decoder.decode(body)
