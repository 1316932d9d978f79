"""A session as its clients read it: the lines around its turns, and what they say of them.

Whatever happens in a turn, its last lines are ``turn_summary`` and ``turn_end``; ``run_summary`` is the last of all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from protocol.frames import Finished
from protocol.records import (
    Hello,
    RunSummary,
    SessionReady,
    TurnEnd,
    TurnEndReason,
    TurnKind,
    TurnStart,
    TurnSummary,
)
from protocol.tool_names import tools_of
from protocol.version import installed_version
from supervisor.config import OneShotSettings
from supervisor.errors import StorageFailed
from supervisor.hub import Hub
from supervisor.run import Run
from supervisor.spawn import Spawner
from supervisor.store.session_store import SessionStore

_KINDS: dict[str, TurnKind] = {"complete": "complete", "cancelled": "cancelled", "limit": "limit"}
"""Outcomes that are kinds of a turn's end; every other one is an ``error``."""


def open_store(settings: OneShotSettings) -> SessionStore:
    """The session that the settings name, or a new one.

    Raises `UnknownSession`, `SessionLocked` or `StorageFailed`. Blocks for some milliseconds.
    """
    if settings.session_id is not None:
        return SessionStore.open(settings.state_folder, settings.session_id)
    return SessionStore.create(
        Path(settings.state_folder),
        project_root=settings.project_root,
        provider=settings.model.provider,
        model=settings.model.model,
        agent_name=settings.agent_name,
    )


class Conversation:
    """The turns of one process's part of a session. ``open``, then turns, then ``close``."""

    def __init__(self, settings: OneShotSettings, store: SessionStore, hub: Hub, spawner: Spawner) -> None:
        self._settings = settings
        self._store = store
        self._hub = hub
        self._spawner = spawner
        self._started_at = trio.current_time()
        self._turns = 0
        self._run: Run | None = None

    def open(self, capabilities: tuple[str, ...]) -> None:
        """Write ``hello`` and ``session_ready``."""
        settings = self._settings
        self._hub.publish(Hello(koda_version=installed_version(), capabilities=capabilities))
        self._hub.publish(
            SessionReady(
                provider=settings.model.provider,
                model=settings.model.model,
                context_window=settings.model.context_window,
                trust=settings.trust,
                tools=tools_of(settings.catalog.get(settings.agent_name)),
                sandbox="none",
                epoch=self._store.epoch,
            )
        )

    def use(self, settings: OneShotSettings) -> None:
        """Begin later turns with ``settings``; a turn that is under way goes on with its own."""
        self._settings = settings

    async def run_turn(self, prompt: str, begun: Callable[[Run], Awaitable[None]]) -> Finished:
        """Run ``prompt`` to its end and say how it ended; ``begun`` is given the turn's run once it can be stopped.

        Cancelling the call ends the turn without its last lines: stop the run instead.
        """
        started_at = trio.current_time()
        self._turns += 1
        self._hub.tagger.begin_turn(f"turn-{self._store.epoch}-{self._turns}")
        self._hub.publish(TurnStart())
        async with trio.open_nursery() as nursery:
            self._run = run = Run(self._settings, self._store, self._hub, self._spawner, nursery, self._run)
            nursery.start_soon(run.grants.run_clock)
            nursery.start_soon(run.cgroups.keep)
            life = run.start_main(prompt)
            await begun(run)
            await life.ended.wait()
            nursery.cancel_scope.cancel()
        ending = await self._settle(life.ending)
        elapsed_ms = round((trio.current_time() - started_at) * 1000)
        self._hub.publish(TurnSummary(usage=run.usage.run_total(), elapsed_ms=elapsed_ms))
        kind = _KINDS.get(ending.outcome, "error")
        self._hub.publish(TurnEnd(reason=TurnEndReason(kind=kind, message=ending.message, code=ending.code)))
        self._hub.tagger.end_turn()
        return ending

    async def close(self, ending: Finished, exit_code: int) -> None:
        """Store the end and write ``run_summary``; ``ending`` is that of the last turn."""
        await self._store.end_run(exit_code).wait_quietly()
        run = self._run
        assert run is not None, "a conversation has at least one turn"
        self._hub.publish(
            RunSummary(
                success=ending.outcome == "complete",
                response=ending.response,
                usage=run.usage.session_total(),
                usage_by_agent=run.usage.by_name(with_base=True),
                model=self._settings.model.model,
                provider=self._settings.model.provider,
                elapsed_ms=round((trio.current_time() - self._started_at) * 1000),
                exit_code=exit_code,
                error=ending.message or None,
                uncertain_calls=run.uncertain_calls,
                agents=run.summaries(),
            )
        )

    async def _settle(self, ending: Finished) -> Finished:
        """How the turn ended once all of it is stored: a turn that could not be stored is no success."""
        try:
            await self._store.flush().wait()
        except StorageFailed as error:
            return Finished(outcome="error", code=error.code, message=str(error), response=ending.response)
        return ending
