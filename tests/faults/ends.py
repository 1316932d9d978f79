"""The ends that a run may come to while its tools are in every way detached from it, and what holds after each."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from tests.faults.scene import check_store, scripted
from tests.stubs.corral_run import LiveRun, Place
from tests.stubs.faulty_corral import faulty_place
from tests.stubs.faulty_worker import Fault
from tests.stubs.model_server import Handler, ModelServer
from tests.stubs.ordinary_user import NOBODY, folder_of_nobody
from tests.stubs.process_table import descendants
from tests.stubs.stream_rules import check_stream

Victim: TypeAlias = Literal["supervisor", "fork server", "worker"]

State: TypeAlias = Literal["waits", "stuck", "stop", "loop"]
"""What the worker does at the end: waits for its command, or one of the faults of that name (see `faulty_worker`)."""

Spawn: TypeAlias = Literal["fork", "fresh"]

KINDS = """
sh -c ': >1; exec sleep 801' &
nohup sh -c ': >2; exec sleep 802' >/dev/null 2>&1 &
setsid sh -c ': >3; exec sleep 803' &
(setsid sh -c 'sleep 804 & : >4; exec sleep 805' &)
setsid sh -c 'trap "" TERM HUP INT; : >5; sleep 807; sleep 808' &
(setsid sh -c ': >6; while :; do sleep 0.05; done' &)
for n in 1 2 3 4 5 6; do until [ -e $n ]; do sleep 0.02; done; done
echo begun
"""
"""Tools of every kind: in the background, nohup, setsid, double fork, deaf, and one that starts others all the time."""

GATE = "ends"
"""The file for which the command itself waits once all of `KINDS` run."""

NAMES: dict[str, Victim] = {"corral-forks": "fork server", "corral-worker": "worker"}
"""What our processes call themselves in the process table."""

FLAGS = ("--no-restart", "--cancel-grace", "0.3")
UNRESPONSIVE = ("--heartbeat-timeout", "6")
"""Where nothing else ends a worker that does not react. Long enough for one that starts on a busy machine."""

LONGEST_GAP = 0.6
"""Seconds between the kills of one end, at most: long enough for the first to have had all its effects."""


class End(msgspec.Struct, frozen=True):
    """An end of a run: a signal to its supervisor (more than once, if so), then SIGKILL to each of ``victims``."""

    victims: tuple[Victim, ...] = ()
    signals: tuple[signal.Signals, ...] = ()

    def __str__(self) -> str:
        steps = [*(number.name for number in self.signals), *(f"KILL {victim}" for victim in self.victims)]
        return ", ".join(steps) or "by itself"

    @property
    def ends_worker(self) -> bool:
        """Whether it ends the worker, or its supervisor, whatever the worker does."""
        return bool(self.signals or {"supervisor", "worker"}.intersection(self.victims))

    def codes(self, state: State) -> set[int]:
        """The exit codes that it may have: two where the supervisor may be quicker than its own kill."""
        codes: set[int] = set()
        if self.signals:
            codes.add(128 + self.signals[0])
        elif "worker" in self.victims[:-1] or "supervisor" not in self.victims:
            codes.add(1 if "worker" in self.victims or state != "waits" else 0)
        if "supervisor" in self.victims:
            codes.add(-signal.SIGKILL)
        return codes


INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
ORDERLY = [End(), End(signals=(INT,)), End(signals=(INT, INT)), End(signals=(TERM,)), End(signals=(HUP,))]
KILLS_OF_FRESH = [
    End(("supervisor",)),
    End(("worker",)),
    End(("supervisor", "worker")),
    End(("worker", "supervisor")),
    End(("supervisor",), signals=(TERM,)),
]
KILLS = [
    *KILLS_OF_FRESH,
    End(("fork server",)),
    End(("supervisor", "fork server")),
    End(("fork server", "supervisor")),
    End(("fork server", "worker")),
    End(("worker", "fork server")),
    End(("supervisor", "fork server", "worker")),
    End(("worker", "fork server", "supervisor")),
    End(("fork server", "supervisor"), signals=(TERM,)),
]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One combination. ``is_ordinary`` says that an ordinary user runs it though the tests run as root."""

    end: End
    state: State = "waits"
    spawn: Spawn = "fork"
    is_ordinary: bool = False

    def __str__(self) -> str:
        user = "nobody" if self.is_ordinary else "root" if os.geteuid() == 0 else "user"
        return f"{self.end}-{self.state}-{self.spawn}-{user}"


def answers() -> Handler:
    """The model: one command that leaves tools of every kind and waits for the gate, then the end."""
    command = f"{KINDS}until [ -e {GATE} ]; do sleep 0.1; done"
    return scripted({"main": [[("run", "Bash", {"command": command})]]})


def carry_out(trial: Trial, server: ModelServer, prefix: tuple[str, ...], gap: float) -> None:
    """A run that comes to its end, with ``gap`` seconds from one kill to the next; what is left fails (see `Place`).

    ``prefix`` is put before the command.
    """
    with _folder(trial) as folder:
        place = _place(folder, trial)
        flags = ("--spawn", trial.spawn, *FLAGS, *(() if trial.end.ends_worker else UNRESPONSIVE))
        before = ("env", f"TMPDIR={folder}", *prefix)
        with place.start(server, *flags, prefix=before) as live:
            live.wait_for_output("begun")
            _kill(live, trial, gap)
            if not trial.end.ends_worker:
                place.write(GATE, "")  # then the run goes on, unless its worker does not react
            run = live.finish(30, checked=False)
        assert run.returncode in trial.end.codes(trial.state), run
        if run.returncode >= 0:
            check_stream(run.lines, run.returncode)
        check_store(place)


@contextmanager
def _folder(trial: Trial) -> Generator[Path, None, None]:
    if trial.is_ordinary:
        with folder_of_nobody() as folder:
            yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix="corral-test-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _place(folder: Path, trial: Trial) -> Place:
    place = Place(folder) if trial.state == "waits" else faulty_place(folder, _fault(trial.state))
    if trial.is_ordinary:
        for path in folder.rglob("*"):
            os.chown(path, NOBODY, NOBODY)
    return place


def _fault(state: Literal["stuck", "stop", "loop"]) -> Fault:
    return Fault(agent="main", moment="tool", kind=state)


def _kill(live: LiveRun, trial: Trial, gap: float) -> None:
    handles = _open_handles(live)
    try:
        for number in trial.end.signals:
            live.signal(number)
        for count, victim in enumerate(trial.end.victims):
            if count or trial.end.signals:
                _has_ended(handles[victim], gap)
            with suppress(ProcessLookupError):  # it may have followed the first by itself
                signal.pidfd_send_signal(handles[victim], signal.SIGKILL)
    finally:
        for handle in handles.values():
            os.close(handle)


def _open_handles(live: LiveRun) -> dict[Victim, int]:
    """A pidfd of each that may be killed, from before anything has ended."""
    handles: dict[Victim, int] = {"supervisor": os.pidfd_open(live.process.pid)}
    for process in descendants(live.process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # a tool that has ended meanwhile
            victim = NAMES.get(Path(f"/proc/{process.pid}/comm").read_text().strip())
            if victim is not None:
                handles[victim] = os.pidfd_open(process.pid)
    return handles


def _has_ended(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
