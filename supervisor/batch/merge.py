"""``corral batch merge``: the results of several shards as those of one batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from protocol.codec import encode_json
from protocol.usage import Usage
from supervisor.batch.core.ending import end_reason, exit_code
from supervisor.batch.core.words import STATUSES, Status
from supervisor.batch.folder import RESULTS, SUMMARY, make_folder, write_whole
from supervisor.batch.ledger import FILE_NAME, LedgerState, read_ledger
from supervisor.batch.records import Counts, JobResult, StoredSummary, result_decoder
from supervisor.commands.command_line import CommandParser, help_asked, write
from supervisor.errors import StorageFailed, WrongUsage

Preference: TypeAlias = Literal["ok", "latest"]

_DESCRIPTION = """\
Join the verdicts of the batches in DIR..., the parts of one job file, into results.jsonl and
summary.json in the folder given with --out. Paths in the results lead to the parts' own folders."""


def merge(arguments: list[str]) -> int:
    """``corral batch merge DIR... --out DIR``; raises `WrongUsage` and `StorageFailed`."""
    parser = CommandParser("batch merge", "DIR... --out DIR [--prefer ok|latest]", _DESCRIPTION)
    parser.add_argument("folders", metavar="DIR", nargs="+", help="folders of batches")
    parser.add_argument("--out", metavar="DIR", help="where the joined results go")
    parser.add_argument("--prefer", choices=("ok", "latest"), help="which of two verdicts on one job counts")
    if help_asked(arguments):
        return write(parser.format_help())
    options = parser.parse_args(arguments)
    if options.out is None:
        raise WrongUsage("corral batch merge needs --out DIR")
    out = Path(options.out).absolute()
    if (out / FILE_NAME).exists():
        raise WrongUsage(f"{out} is the folder of a batch: take another one with --out")
    parts = [(folder, _read(folder)) for folder in map(Path, options.folders)]
    results = join_results(
        [(_moved(result, folder, out)) for folder, state in parts for result in _results(state)], options.prefer
    )
    states = [state for _, state in parts]
    summary = _summary(results, states)
    make_folder(out)
    try:
        write_whole(out / RESULTS, b"".join(encode_json(result) + b"\n" for result in results))
        write_whole(out / SUMMARY, encode_json(summary) + b"\n")
    except OSError as error:
        raise StorageFailed(f"{out} can't be written: {error.strerror or error}") from None
    write(encode_json(summary) + b"\n")
    return summary.exit_code or 0


def join_results(results: list[JobResult], prefer: Preference | None) -> list[JobResult]:
    """One verdict for each job, in the order in which they came; raises `WrongUsage` for two without a preference."""
    chosen: dict[str, JobResult] = {}
    for result in results:
        other = chosen.get(result.id)
        if other is not None and prefer is None:
            raise WrongUsage(f"there are two verdicts on the job {result.id}: choose with --prefer ok or latest")
        if other is None or _is_better(result, other, prefer):
            chosen[result.id] = result
    return sorted(chosen.values(), key=lambda result: (result.ended_at, result.index))


def _is_better(result: JobResult, other: JobResult, prefer: Preference | None) -> bool:
    if prefer == "ok" and result.success != other.success:
        return result.success
    return result.ended_at > other.ended_at


def _read(folder: Path) -> LedgerState:
    state = read_ledger(folder)
    if state is None:
        raise WrongUsage(f"there is no batch in {folder}")
    return state


def _results(state: LedgerState) -> list[JobResult]:
    return [result_decoder.decode(stored.line) for stored in state.results.values()]


def _moved(result: JobResult, folder: Path, out: Path) -> JobResult:
    """The result with its paths as they are seen from ``out``."""

    def seen(path: str | None) -> str | None:
        return None if path is None else os.path.relpath(folder.absolute() / path, out)

    return msgspec.structs.replace(result, patch=seen(result.patch), log=seen(result.log))


def _summary(results: list[JobResult], states: list[LedgerState]) -> StoredSummary:
    known = {job_id for state in states for job_id in state.jobs}
    pending = len(known) - len(results)
    counts: dict[Status, int] = {status: sum(result.status == status for result in results) for status in STATUSES}
    reason = end_reason("halt" if pending else None, counts, pending)
    attempts = [attempt for state in states for found in state.attempts.values() for attempt in found]
    return StoredSummary(
        batch_id="+".join(state.batch_id for state in states),
        counts=Counts(total=len(known), pending=pending, **counts),
        usage=sum((attempt.usage for attempt in attempts), Usage()),
        uncertain_calls=sum(attempt.uncertain_calls for attempt in attempts),
        cost_usd=None,
        not_run=pending,
        exit_code=exit_code(reason, counts, pending),
        reason=reason,
        orphaned=(),
    )
