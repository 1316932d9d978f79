"""``corral batch``: from the command line to the exit code."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial

import trio

from protocol.key_scrubbing import take_out_of_environment
from protocol.process_tree import become_subreaper, forbid_inspection, kill_strays
from supervisor.batch import ledger_schema as schema
from supervisor.batch.cleaning import leftovers
from supervisor.batch.errors import JobFileInvalid
from supervisor.batch.flags import BatchOptions, CommandLine, batch_parser, parse_batch
from supervisor.batch.folder import FolderLock, make_folder
from supervisor.batch.ledger import Ledger, LedgerState, is_on_network, read_ledger
from supervisor.batch.lost import end_lost
from supervisor.batch.merge import merge
from supervisor.batch.plan import Plan, make_plan
from supervisor.batch.process_trees import start_time
from supervisor.batch.remote.ray_api import refuse_without_ray
from supervisor.batch.remote.ray_cluster import RayCluster
from supervisor.batch.resume import Resumption, take_up
from supervisor.batch.runner import BatchSetup, run_batch
from supervisor.batch.status import status
from supervisor.commands.command_line import help_asked, table, write
from supervisor.early_fork import fork_early
from supervisor.errors import StorageFailed, WrongUsage
from supervisor.sinks.notes import write_note
from supervisor.spawn import Spawner, choose_spawner
from supervisor.terminal_text import printable
from supervisor.xdg import state_folder

_SUBCOMMANDS = {"status": status, "merge": merge}


def batch(arguments: list[str]) -> int:
    """``corral batch``; raises `WrongUsage`, `BatchLocked` and `StorageFailed`."""
    if arguments and arguments[0] in _SUBCOMMANDS:
        return _SUBCOMMANDS[arguments[0]](arguments[1:])
    if help_asked(arguments):
        return write(batch_parser().format_help())
    try:
        return _run(parse_batch(arguments, os.environ), arguments)
    except JobFileInvalid as error:
        for fault in error.faults:
            sys.stderr.write(f"{' '.join(printable(fault).split())}\n")
        raise


def _run(command_line: CommandLine, argv: list[str]) -> int:
    options = command_line.options
    if options.ray is not None:
        refuse_without_ray()
    lock = FolderLock(options.folder) if options.folder.is_dir() and not options.dry_run else None
    try:
        state = read_ledger(options.folder)
        plan = make_plan(options, command_line.one_shot, os.environ, state.bases if state is not None else {})
        resumption = take_up(
            plan.jobs, state, rerun=options.rerun, on_changed=options.on_changed, file=options.jobs_file
        )
        _refuse_unshared(options, plan)
        _tell(plan)
        if options.dry_run:
            return write(_plan_text(plan, state))
        spawner = _make_spawner(plan, with_cluster=options.ray is not None)
        try:
            if lock is None:
                make_folder(options.folder)
                lock = FolderLock(options.folder)
            cluster = RayCluster.open(options.ray, options.slots) if options.ray is not None else None
            try:
                return _run_locked(options, plan, resumption, state, spawner, cluster, argv)
            finally:
                if cluster is not None:
                    cluster.close()
        finally:
            spawner.close()
    finally:
        if lock is not None:
            lock.release()


def _refuse_unshared(options: BatchOptions, plan: Plan) -> None:
    """Raise `WrongUsage` where a job is to work in its folder itself, and other machines may not have that."""
    there = [job.id for job in plan.jobs if job.isolation == "none"]
    if options.ray is None or options.shared_fs or not there:
        return
    named = there[0] if len(there) == 1 else f"{there[0]} and {len(there) - 1} more"
    raise WrongUsage(
        f"{named} would work in the folder itself (isolation none), which other machines may not have: --shared-fs "
        "says that they do; --isolation copy or worktree brings it there"
    )


def _make_spawner(plan: Plan, *, with_cluster: bool) -> Spawner:
    """Take the keys out of the environment, then make what starts workers."""
    take_out_of_environment({name for job in plan.jobs for name in job.settings.environ})
    forbid_inspection()  # before the fork server is forked: it has a copy of the settings
    early = None if plan.plain.spawn == "fresh" else fork_early()
    # With a cluster there are other children: then nobody here makes attempts, so nobody here leaves orphans.
    return choose_spawner(plan.plain.spawn, early, ends_orphans=not with_cluster)


def _run_locked(
    options: BatchOptions,
    plan: Plan,
    resumption: Resumption,
    state: LedgerState | None,
    spawner: Spawner,
    cluster: RayCluster | None,
    argv: Sequence[str],
) -> int:
    make_folder(options.folder)
    sessions = state_folder(os.environ)
    rows = [*resumption.writes, *(row for attempt in resumption.lost for row in end_lost(attempt, sessions))]
    rows += [schema.put_base(repository, name, sha) for (repository, name), sha in plan.bases.items()]
    epoch = state.epoch + 1 if state is not None else 1
    pid = os.getpid()
    begin = schema.begin_run(epoch, pid, start_time(pid), socket.gethostname(), list(argv), time.time())
    ledger = Ledger.open(options.folder, state, [begin, *rows], plan.file_sha)
    if is_on_network(options.folder):
        write_note(f"{options.folder} is on a network file system: the ledger is slower there, and less safe")
    become_subreaper()
    try:
        now = read_ledger(options.folder)
        if now is None:
            raise StorageFailed(f"the ledger in {options.folder} has vanished")
        setup = BatchSetup(
            options=options,
            plan=plan,
            resumption=resumption,
            is_resumed=state is not None,
            state=now,
            ledger=ledger,
            leftovers=leftovers(now, options.folder, options.keep),
            cluster=cluster,
        )
        return trio.run(partial(run_batch, setup, spawner))
    finally:
        ledger.close()
        spawner.close()
        if cluster is None:
            kill_strays()


def _tell(plan: Plan) -> None:
    """Notes for a person, and which jobs have to wait for each other."""
    if plan.plain.quiet:
        return
    for note in plan.notes:
        write_note(note)
    lanes: dict[str, int] = {}
    for job in plan.jobs:
        if job.lane is not None:
            lanes[job.lane] = lanes.get(job.lane, 0) + 1
    for folder, count in lanes.items():
        if count > 1:
            write_note(f"{count} jobs work in {folder} itself: they run one after the other")


def _plan_text(plan: Plan, state: LedgerState | None) -> str:
    done = state.results if state is not None else {}
    rows = [("JOB", "STATE", "ISOLATION", "BASE", "AGENT", "MODEL", "FOLDER")]
    for job in plan.jobs:
        stands = done[job.id].status if job.id in done else "to run"
        model = f"{job.settings.model.model} ({job.settings.model.provider})"
        base = job.base[:12] if job.base is not None else "-"
        rows.append((job.id, stands, job.isolation, base, job.settings.agent_name, model, str(job.source)))
    to_run = sum(job.id not in done for job in plan.jobs)
    return f"{table(rows)}{len(plan.jobs)} jobs, {to_run} to run\n"
