"""Runs of many sub-agents for the bench, and what ``/proc`` says of their processes meanwhile. Linux only."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
CORRAL = Path(sys.executable).with_name("corral")
RUN_TIMEOUT = 120.0
NS_PER_MS = 1e6
CHUNK_BYTES = 65536
TAIL_BYTES = 4000
CRASH = b'"type":"agent_crashed"'
WORKER_NAME = "corral-worker"


class BenchError(Exception):
    """A run did not do what is to be measured."""


@dataclass(frozen=True, kw_only=True)
class Fan:
    """One run: its main agent gives work to ``agents`` sub-agents at once, who then have Bash print ``lines`` lines.

    Each printed line is an event of its own on the wire. With no lines a sub-agent makes no tool call at all.
    ``bytes_per_second`` is how fast the run's stdout is read; None takes all at once.
    """

    agents: int
    lines: int = 0
    looks_at_workers: bool = False
    bytes_per_second: float | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerCost:
    """One sub-agent's process while it waits for its first reply; ``own_bytes`` is what it shares with no other."""

    own_bytes: int
    cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class FanEnded:
    """What a run came to.

    ``start_ms`` is from the reply that gives out the work to the last sub-agent's first request. ``supervisor_cpu_ms``
    and ``lines`` are of the time after that. ``peak_bytes`` is the most memory that the supervisor had in use.
    """

    start_ms: float
    workers: tuple[WorkerCost, ...]
    supervisor_cpu_ms: float
    lines: int
    bytes: int
    peak_bytes: int


class Reader:
    """Takes the stdout of a run on a thread, fast or slowly, and looks at the writer's memory with each piece."""

    def __init__(self, process: subprocess.Popen[bytes], bytes_per_second: float | None) -> None:
        self.lines = self.bytes = self.peak_bytes = 0
        self.tail = b""
        self.crashes = 0
        self.first_crash = b""
        self._process = process
        self._pace = bytes_per_second
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Return when the stream has ended; raises `BenchError` if it does not in time."""
        self._thread.join(RUN_TIMEOUT)
        if self._thread.is_alive():
            raise BenchError(f"a run did not end within {RUN_TIMEOUT:g} s:\n{self.tail.decode(errors='replace')}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), CHUNK_BYTES):
            self.lines += data.count(b"\n")
            self.bytes += len(data)
            self._look_for_crashes(data)
            self.tail = (self.tail + data)[-TAIL_BYTES:]
            self.peak_bytes = max(self.peak_bytes, peak_bytes_of(self._process.pid))
            if self._pace is not None:
                time.sleep(len(data) / self._pace)

    def _look_for_crashes(self, data: bytes) -> None:
        # A line may have begun in the piece before this one.
        text = self.tail[1 - len(CRASH) :] + data
        self.crashes += text.count(CRASH)
        if not self.first_crash and (at := text.find(CRASH)) >= 0:
            self.first_crash = text[at:].partition(b"\n")[0]


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Where runs are made: a project, a home, and a model server whose times come in on ``times``."""

    project: Path
    environ: dict[str, str]
    port: int
    times: queue.Queue[int]
    model_stdin: IO[str]

    def time_command(self, command: list[str]) -> float:
        """How long a command takes, in milliseconds; raises `BenchError`."""
        began = time.monotonic_ns()
        if subprocess.run(command, env=self.environ, cwd=self.project, check=False).returncode != 0:
            raise BenchError(f"{command} failed")
        return (time.monotonic_ns() - began) / NS_PER_MS

    def run_once(self, spawn: str) -> tuple[float, float]:
        """A run of one reply: from its start to the first model request and to its exit, in milliseconds."""
        began = time.monotonic_ns()
        with self._started("none/0/0", "--spawn", spawn) as process:
            reader = Reader(process, None)
            asked = self._next_time(reader)
            reader.finish()
            process.wait()
            ended = time.monotonic_ns()
            self._check(process, reader)
        return (asked - began) / NS_PER_MS, (ended - began) / NS_PER_MS

    def run(self, fan: Fan) -> FanEnded:
        """Make the run; raises `BenchError` if it does not end well."""
        many = str(max(fan.agents, 16) + 1)
        with self._started(
            f"fan/{fan.agents}/{fan.lines}", "--max-agents", many, "--max-parallel-agents", many
        ) as process:
            reader = Reader(process, fan.bytes_per_second)
            self._next_time(reader)
            delegated = self._next_time(reader)
            asked = [self._next_time(reader) for _ in range(fan.agents)]
            workers = tuple(_costs_of_sub_agents(process.pid)) if fan.looks_at_workers else ()
            lines, cpu_ms = reader.lines, cpu_ms_of(process.pid)
            print(fan.agents, file=self.model_stdin, flush=True)
            for _ in range(fan.agents + 1 if fan.lines else 1):
                self._next_time(reader)
            reader.finish()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie still tells its CPU time
            cpu_ms = cpu_ms_of(process.pid) - cpu_ms
            self._check(process, reader)
        return FanEnded(
            start_ms=(max(asked) - delegated) / NS_PER_MS,
            workers=workers,
            supervisor_cpu_ms=cpu_ms,
            lines=reader.lines - lines,
            bytes=reader.bytes,
            peak_bytes=reader.peak_bytes,
        )

    @contextmanager
    def _started(self, work: str, *flags: str) -> Generator[subprocess.Popen[bytes]]:
        address = f"http://127.0.0.1:{self.port}/{work}/v1"
        command = [
            str(CORRAL),
            *("-p", "go", "--output-format", "stream-json", "--project-root", str(self.project)),
            *("--provider", "openai-compatible", "--model", "bench", "--base-url", address, *flags),
        ]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environ,
            cwd=self.project,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _next_time(self, reader: Reader) -> int:
        try:
            return self.times.get(timeout=RUN_TIMEOUT)
        except queue.Empty:
            raise BenchError(f"no model call came:\n{reader.tail.decode(errors='replace')}") from None

    def _check(self, process: subprocess.Popen[bytes], reader: Reader) -> None:
        """The run ended well, and no agent had to be restarted: that would have cost model calls of its own."""
        if process.wait() != 0:
            raise BenchError(f"exit {process.returncode}:\n{reader.tail.decode(errors='replace')}")
        if reader.crashes:
            raise BenchError(f"{reader.crashes} agents crashed; the first: {reader.first_crash.decode()}")


@contextmanager
def prepare() -> Generator[Crowd]:
    """A temporary project and home, and a model server that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        project, home = Path(folder, "project"), Path(folder, "home")
        project.mkdir()
        home.mkdir()
        command = [sys.executable, "-m", "scripts.bench_model"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as model:
            assert model.stdin is not None
            assert model.stdout is not None
            try:
                port = int(model.stdout.readline())
                times: queue.Queue[int] = queue.Queue()
                threading.Thread(target=_pass_on, args=(model.stdout, times), daemon=True).start()
                # Without the variable only root may look into the workers' memory.
                environ = {
                    "PATH": os.environ["PATH"],
                    "HOME": str(home),
                    "LANG": "C.UTF-8",
                    "CORRAL_DEBUGGABLE": "1",
                }
                yield Crowd(project=project, environ=environ, port=port, times=times, model_stdin=model.stdin)
            finally:
                model.kill()  # it may hold replies back


def _pass_on(lines: IO[str], times: queue.Queue[int]) -> None:
    for line in lines:
        times.put(int(line))


def cpu_ms_of(pid: int) -> float:
    """CPU time of a process and all its threads, without its children, in milliseconds; whole ticks only.

    Source: proc(5), /proc/pid/stat, utime and stime.
    """
    # The name, in brackets, may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _exact_cpu_ms_of(pid: int) -> float:
    """As `cpu_ms_of`, in nanoseconds where the system counts them, for a process none of whose threads has ended.

    Source: sched-stats in the Linux kernel's documentation, /proc/pid/task/tid/schedstat.
    """
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        spent = [int((task / "schedstat").read_text().split()[0]) for task in tasks]
    except FileNotFoundError:
        return cpu_ms_of(pid)
    return sum(spent) / NS_PER_MS


def peak_bytes_of(pid: int) -> int:
    """The most memory that a process has had in use; 0 where it has ended. Source: proc(5), VmHWM."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def own_bytes_of(pid: int) -> int:
    """Memory that a process shares with no other one (USS). Source: proc(5), /proc/pid/smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def _costs_of_sub_agents(supervisor: int) -> Iterator[WorkerCost]:
    """Of all workers below ``supervisor`` but the first, which is the main agent's."""
    workers = [pid for pid in _below(supervisor) if _name_of(pid) == WORKER_NAME]
    for pid in sorted(workers, key=_started_at)[1:]:
        yield WorkerCost(own_bytes=own_bytes_of(pid), cpu_ms=_exact_cpu_ms_of(pid))


def _below(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _below(child)


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _started_at(pid: int) -> tuple[int, int]:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]), pid
