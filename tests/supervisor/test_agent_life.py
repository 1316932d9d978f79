"""One agent over its workers, in a run of this process: what the command can't show from outside."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

import tests
from protocol.frames import ChildResult, Finished, SpawnRequest
from protocol.records import AgentCrashed, Info
from supervisor.config import OneShotSettings, read_settings
from supervisor.conversation import open_store
from supervisor.core.admission import MemoryLimits
from supervisor.core.tagger import Tagger
from supervisor.core.worker_times import WorkerTimes
from supervisor.flags import parse_one_shot
from supervisor.hub import Hub
from supervisor.run import Run
from supervisor.spawn import FreshSpawner, Spawner, WorkerProcess, choose_spawner
from tests.stubs import process_table, raw_worker
from tests.supervisor.test_admission import Kept

TIMES = WorkerTimes(grace=0.3, silence=10.0, terminate=0.3)
DONE = {"agents": {"*": [{"reply": {"text": "Done."}}]}}
SLOW = {"agents": {"*": [{"reply": {"text": "Done.", "delay": 60}}]}}


@pytest.fixture(autouse=True)
def orphans_come_here() -> Generator[None, None, None]:
    with process_table.subreaper():
        yield


class RawSpawner:
    """Starts workers that misbehave as functions of `raw_worker`, one after the other."""

    def __init__(self, *names: str) -> None:
        packages = (Path(tests.__path__[0]),)
        self._spawner = choose_spawner("fresh", entry=raw_worker.ENTRY, packages=packages, ends_orphans=True)
        self._names = list(names)
        self._started = [trio.Event() for _ in names]

    async def spawn(self, kind: str) -> WorkerProcess:
        assert kind == "agent"
        process = await self._spawner.spawn(self._names.pop(0))
        self._started[-1 - len(self._names)].set()
        return process

    async def started(self, number: int) -> None:
        """Return once worker ``number``, counted from 1, has been started and is known to its agent."""
        await self._started[number - 1].wait()
        await trio.testing.wait_all_tasks_blocked()

    async def run(self) -> None:
        await self._spawner.run()

    def close(self) -> None:
        self._spawner.close()


def settings_for(folder: Path, scenario: object = DONE, *flags: str) -> OneShotSettings:
    (folder / "scenario.json").write_text(json.dumps(scenario))
    environ = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    arguments = ["-p", "go", "--provider", "scripted", "--script", str(folder / "scenario.json"), *flags]
    arguments += ["--project-root", str(folder)]
    settings = read_settings(parse_one_shot(arguments, environ), environ, None)
    return msgspec.structs.replace(settings, worker_times=TIMES)


@asynccontextmanager
async def a_run(settings: OneShotSettings, spawner: Spawner | None = None) -> AsyncGenerator[tuple[Run, Kept], None]:
    """A run in this process; at the end of the block everything of it is ended."""
    store = open_store(settings)
    sink = Kept()
    spawner = spawner or FreshSpawner()
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                hub = Hub(Tagger(store.session_id), [sink])
                run = Run(settings, store, hub, spawner, nursery)
                nursery.start_soon(spawner.run)
                nursery.start_soon(run.grants.run_clock)
                yield run, sink
                run.stop(Finished(outcome="cancelled"))
                run.kill_all()
                for life in run.lives.values():
                    await life.ended.wait()
                nursery.cancel_scope.cancel()
    finally:
        spawner.close()
        store.close()
    left = [process for process in process_table.descendants(os.getpid()) if "corral" in process.command]
    assert not left


async def test_an_agent_ends_as_its_worker_says(tmp_path: Path) -> None:
    async with a_run(settings_for(tmp_path)) as (run, _sink):
        life = run.start_main("go")
        await life.ended.wait()
        assert (life.ending.outcome, life.ending.response) == ("complete", "Done.")
        assert life.pid is None
        assert run.tree["main"].outcome == "complete"


async def test_a_cancel_decides_how_the_agent_ends_and_only_the_first_one_does(tmp_path: Path) -> None:
    async with a_run(settings_for(tmp_path, SLOW)) as (run, _sink):
        life = run.start_main("go")
        life.cancel(Finished(outcome="cancelled", code="first", message="first"))
        life.cancel(Finished(outcome="limit", code="second", message="second"))
        await life.ended.wait()
        assert (life.ending.outcome, life.ending.code) == ("cancelled", "first")
        life.cancel(Finished(outcome="limit", code="third"))
        assert life.ending.code == "first"


async def test_an_agent_that_waits_for_a_place_needs_no_worker_to_be_cancelled(tmp_path: Path) -> None:
    spawner = RawSpawner("is_deaf", "is_deaf")
    async with a_run(settings_for(tmp_path, SLOW, "--max-parallel-agents", "1"), spawner) as (run, _sink):
        parent = run.start_main("go")
        await spawner.started(1)
        run.start_child(parent, SpawnRequest(request=1, call_id="a", agent_name="task", prompt="one"))
        run.start_child(parent, SpawnRequest(request=2, call_id="b", agent_name="task", prompt="two"))
        one, two = (life for life in run.lives.values() if life is not parent)
        await spawner.started(2)
        one, two = sorted((one, two), key=lambda life: life.pid is None)
        assert two.pid is None, "there is one place, and the parent has given it to the first"
        two.cancel(Finished(outcome="cancelled", message="not needed"))
        await two.ended.wait()
        assert two.ending.outcome == "cancelled"
        assert not one.ended.is_set()


async def test_agents_that_all_wait_for_sub_agents_do_not_keep_these_waiting_for_memory(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(settings_for(tmp_path, SLOW), memory=MemoryLimits(free=1, tree=1))
    spawner = RawSpawner("is_deaf", "is_deaf")
    async with a_run(settings, spawner) as (run, sink):
        parent = run.start_main("go")
        await spawner.started(1)
        parent.frames.memory_bytes = 1  # over the ceiling by itself
        run.start_child(parent, SpawnRequest(request=1, call_id="a", agent_name="task", prompt="one"))
        run.start_child(parent, SpawnRequest(request=2, call_id="b", agent_name="task", prompt="two"))
        children = [life for life in run.lives.values() if life is not parent]
        await spawner.started(2)
        await sink.first(Info)
        assert sum(child.pid is not None for child in children) == 1, "the second waits while the first is at work"


async def test_a_key_never_stands_in_what_a_dying_worker_said(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, DONE, "--no-restart")
    settings = msgspec.structs.replace(settings, model=msgspec.structs.replace(settings.model, api_key="the reason"))
    async with a_run(settings, RawSpawner("fails")) as (run, sink):
        life = run.start_main("go")
        await life.ended.wait()
        crash = await sink.first(AgentCrashed)
        assert isinstance(crash, AgentCrashed)
        assert crash.detail == "RuntimeError: [key] why"
        assert "the reason" not in life.ending.message
        assert "[key] why" in life.ending.message


async def test_an_unknown_agent_is_refused_to_the_one_that_asked(tmp_path: Path) -> None:
    spawner = RawSpawner("is_deaf")
    async with a_run(settings_for(tmp_path, SLOW), spawner) as (run, _sink):
        parent = run.start_main("go")
        await spawner.started(1)
        parent.delegate(SpawnRequest(request=1, call_id="a", agent_name="nobody", prompt="one"))
        (result,) = parent.delegations.results([1])
        assert isinstance(result, ChildResult)
        assert result.outcome == "error"
        assert "nobody" in result.text
        assert list(run.lives) == ["main"], "and there is no half-made agent"


async def test_children_end_before_their_parent_does(tmp_path: Path) -> None:
    spawner = RawSpawner("is_deaf", "is_deaf")
    async with a_run(settings_for(tmp_path, SLOW), spawner) as (run, _sink):
        parent = run.start_main("go")
        await spawner.started(1)
        run.start_child(parent, SpawnRequest(request=1, call_id="a", agent_name="task", prompt="one"))
        (child,) = (life for life in run.lives.values() if life is not parent)
        await spawner.started(2)
        parent.cancel(Finished(outcome="cancelled", message="enough"))
        await parent.ended.wait()
        assert child.ended.is_set()
        assert child.ending.outcome == "cancelled"
