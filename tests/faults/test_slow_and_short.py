"""A reader that is slow or takes nothing, and a system that has nothing left to give."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import QUICK, check_store, model, scripted
from tests.stubs.corral_run import LiveRun, Place, Run
from tests.stubs.faulty_corral import faulty_place
from tests.stubs.faulty_worker import TORRENT, TORRENT_TEXT, Fault
from tests.stubs.model_server import ModelServer
from tests.stubs.replies import CallTuple, delegations
from tests.stubs.stream_rules import Line, check_stream

MIB = 1 << 20


def peak_memory(pid: int) -> int:
    """The most memory that a living process had, in bytes. Source: proc(5), VmHWM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def read_slowly(descriptor: int, live: LiveRun, pace: float) -> tuple[bytes, int]:
    """All that comes, 64 KiB every ``pace`` seconds, and the most memory that the supervisor was seen to have.

    The pace is all that it is for: nothing is waited for by time.
    """
    pause = threading.Event()
    data = bytearray()
    peak = 0
    while piece := os.read(descriptor, 65_536):
        data += piece
        if live.process.poll() is None:
            peak = max(peak, peak_memory(live.process.pid))
        pause.wait(pace)
    return bytes(data), peak


def torrent(folder: Path, pace: float) -> tuple[Run, int]:
    """A run whose two sub-agents write 32 MB between them, faster than they are read."""
    agents = ("one", "two")
    place = faulty_place(folder, *(Fault(agent=agent, moment="stream", kind="torrent") for agent in agents))
    reader, writer = os.pipe()
    with ModelServer(model(*agents)) as server, place.start(server, *QUICK, stdout=writer) as live:
        os.close(writer)
        data, peak = read_slowly(reader, live, pace)
        os.close(reader)
        run = live.finish(checked=False)
    return Run(stdout=data, stderr=run.stderr, returncode=run.returncode), peak


def check_torrent(run: Run, peak: int) -> None:
    assert run.returncode == 0, run.stderr
    check_stream(run.lines, run.returncode)
    assert len(run.of_type("thinking_delta")) == 2 * TORRENT
    assert len(run.stdout) > 2 * TORRENT * TORRENT_TEXT
    assert peak < 80 * MIB, "a supervisor with nothing to do has some 45 MiB, and there were 32 MB to keep"


def test_a_slow_reader_gets_everything_and_the_supervisors_memory_stays_flat(tmp_path: Path) -> None:
    check_torrent(*torrent(tmp_path, 0.002))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_reader_at_a_megabyte_a_second_gets_everything_and_the_supervisors_memory_stays_flat(tmp_path: Path) -> None:
    check_torrent(*torrent(tmp_path, 0.0625))


ONCE = (signal.SIGINT,)
TWICE = (signal.SIGINT, signal.SIGTERM)
"""Two different ones: of two equal signals the system may make one."""


@pytest.mark.parametrize(("signals", "limit"), [(ONCE, 12.0), (TWICE, 4.5)], ids=["once", "twice"])
def test_a_reader_that_takes_nothing_does_not_keep_a_signal_from_ending_the_run(
    tmp_path: Path, signals: tuple[signal.Signals, ...], limit: float
) -> None:
    # A few seconds for stdout after the first signal, one after the second; then the run ends without its last lines.
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="torrent"))
    reader, writer = os.pipe()
    with ModelServer(model()) as server, place.start(server, *QUICK, stdout=writer) as live:
        os.close(writer)
        # The torrent has begun; what comes behind this line is more than the pipe and all buffers take.
        seen = bytearray()
        while b"thinking_delta" not in seen:
            seen += os.read(reader, 4096)
        for number in signals:
            live.signal(number)
        run = live.finish(limit, checked=False)
        os.close(reader)
    assert run.returncode in {128 + number for number in signals}, run.stderr
    check_store(place)


def test_a_second_signal_still_writes_the_last_lines_to_a_reader_that_takes_them(tmp_path: Path) -> None:
    place = faulty_place(tmp_path, Fault(agent="main", moment="tool", kind="stop"))
    with ModelServer(model()) as server, place.start(server, "--cancel-grace", "60") as live:
        live.wait_for_output("begun")
        for number in TWICE:
            live.signal(number)
        run = live.finish(10)
    assert run.returncode in {128 + number for number in TWICE}, run
    assert run.end["kind"] == "cancelled"
    check_store(place)


# -- no descriptors left ----------------------------------------------------------------------------------------------

COUNT = 24


def gated(agent: str) -> CallTuple:
    """A command that runs until there is a file ``go``."""
    return (f"run-{agent}", "Bash", {"command": "echo begun; until [ -e go ]; do sleep 0.1; done"})


def crashes(live: LiveRun) -> Iterator[Line]:
    yield from live.wait_for(lambda line: line["type"] == "agent_crashed")


def test_new_agents_are_refused_when_no_descriptor_is_left_and_the_old_ones_finish(tmp_path: Path) -> None:
    place = Place(tmp_path)
    names = [f"agent-{number}" for number in range(COUNT)]
    scripts = {"main": [delegations("task", *names)], **{name: [[gated(name)]] for name in names}}
    few = ("sh", "-c", 'ulimit -n 48; exec "$@"', "sh")
    flags = (*QUICK, "--max-parallel-agents", str(2 * COUNT))
    with ModelServer(scripted(scripts)) as server, place.start(server, *flags, prefix=few) as live:
        assert next(crashes(live))["cause"] == "spawn_failed"
        live.wait_for_output("begun")
        place.write("go", "")
        run = live.finish()
    check_store(place)
    assert run.returncode == 0, run
    refused = {crash["parent_id"] for crash in run.of_type("agent_crashed")}
    assert {crash["cause"] for crash in run.of_type("agent_crashed")} == {"spawn_failed"}
    assert 0 < len(refused) < COUNT
    for name in names:
        call_id = f"to-{name}"
        assert run.outcomes()[call_id] == ("error" if call_id in refused else "success")
        assert ("Too many open files" in run.outputs()[call_id]) is (call_id in refused)
