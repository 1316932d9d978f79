"""One session of a client: its stored session, its prompts one after the other, its mode."""

from __future__ import annotations

import os
import signal
from functools import partial

import msgspec
import trio

from protocol.agent_spec import AgentSpec, Trust
from protocol.frames import Finished
from protocol.jsonrpc import RequestId
from supervisor import exit_codes
from supervisor.acp_agent.client_sink import ClientSink
from supervisor.acp_agent.connection import Connection
from supervisor.acp_agent.core.prompt_turn import PromptTurns
from supervisor.acp_agent.core.translation import Features, Translator
from supervisor.acp_agent.core.updates import (
    ConfigOption,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    ModeState,
    SessionInfoUpdate,
)
from supervisor.acp_agent.modes import config_options, mode_state, modes_for
from supervisor.acp_agent.permissions import ClientApprover, Permissions
from supervisor.config import OneShotSettings
from supervisor.conversation import Conversation
from supervisor.core.tagger import Tagger
from supervisor.hub import Hub
from supervisor.live.server import LiveServer
from supervisor.run import Run
from supervisor.run_view import RunView
from supervisor.spawn import Spawner
from supervisor.store.session_store import SessionStore

LONGEST_TITLE = 80
_ENDED = Finished(outcome="cancelled", code="cancelled", message="the client cancelled the turn")


class ClientSession:
    """A session that a client has open. It owns ``store`` until `close`."""

    def __init__(
        self,
        settings: OneShotSettings,
        store: SessionStore,
        connection: Connection,
        spawner: Spawner,
        features: Features,
    ) -> None:
        self.session_id = store.session_id
        self.turns = PromptTurns()
        self._settings = settings
        self._store = store
        self._connection = connection
        self._translator = Translator(str(settings.project_root), store.epoch, features)
        self._sink = ClientSink(self.session_id, self._translator, connection)
        self._hub = Hub(Tagger(self.session_id), [self._sink])
        self._conversation = Conversation(settings, store, self._hub, spawner)
        self._conversation.open(("acp", "self_answer"))
        self._permissions = Permissions()
        self._run: Run | None = None
        self._last_ending: Finished | None = None
        self._idle = trio.Event()
        self._idle.set()

    # -- mode ---------------------------------------------------------------------------------------------------------

    @property
    def modes(self) -> ModeState:
        """The trust modes and the one that holds."""
        return mode_state(self._settings.trust, self._spec)

    @property
    def options(self) -> tuple[ConfigOption, ...]:
        """What there is to choose."""
        return config_options(self._settings.trust, self._spec)

    def set_mode(self, wanted: str) -> bool:
        """Have the next prompts run in the mode; False if there is no such mode. Tells the client of a change."""
        mode: Trust | None = next((mode.id for mode in modes_for(self._spec) if mode.id == wanted), None)
        if mode is None:
            return False
        if mode != self._settings.trust:
            self._settings = msgspec.structs.replace(self._settings, trust=mode)
            self._conversation.use(self._settings)
            self._connection.update(self.session_id, CurrentModeUpdate(current_mode_id=mode))
            self._connection.update(self.session_id, ConfigOptionUpdate(config_options=self.options))
        return True

    # -- prompts ------------------------------------------------------------------------------------------------------

    def begin_prompt(self, request: RequestId) -> bool:
        """Open the prompt of ``request``, for `run_turn`; False while another one is open."""
        if not self.turns.begin(request):
            return False
        self._idle = trio.Event()
        return True

    async def run_turn(self, prompt: str) -> Finished:
        """Run ``prompt`` to its end, once it was opened. All updates are sent when this returns."""
        try:
            if self._store.epoch == 1 and self._last_ending is None:
                title = " ".join(prompt.split())[:LONGEST_TITLE]
                self._connection.update(self.session_id, SessionInfoUpdate(title=title))
            self._translator.begin_turn()
            async with trio.open_nursery() as watchers:
                self._last_ending = await self._conversation.run_turn(prompt, partial(self._watch, watchers))
                watchers.cancel_scope.cancel()
            return self._last_ending
        finally:
            self._run = None
            self._idle.set()

    async def _watch(self, watchers: trio.Nursery, run: Run) -> None:
        self._run = run
        self._sink.begin_turn(run.tree)
        run.approver = ClientApprover(self.session_id, self._connection, self._translator, self._permissions, watchers)
        if self.turns.is_cancelled:
            self._stop(run, _ENDED)
        watchers.start_soon(self._sink.show_live_output)
        if self._settings.timeout is not None:
            watchers.start_soon(self._watch_time, self._settings.timeout, run)
        # A second shell may look on; where it can't, the turn is none the worse.
        view = RunView(run, os.getpid(), partial(self._end_run, run))
        await watchers.start(LiveServer(view, self._hub, process_goes_on=True).serve)

    async def _watch_time(self, seconds: float, run: Run) -> None:
        await trio.sleep(seconds)
        message = f"the time limit of {seconds:g} s was reached"
        self._stop(run, Finished(outcome="limit", code="timeout", message=message))

    def _end_run(self, run: Run, reason: str) -> None:
        self._stop(run, Finished(outcome="cancelled", code="cancelled", message=reason))

    def _stop(self, run: Run, ending: Finished) -> None:
        # A client that reads nothing must not keep the turn from ending.
        self._hub.release()
        run.stop(ending)

    def cancel(self) -> None:
        """End the prompt that is open, if there is one; `run_turn` returns soon."""
        if self.turns.cancel() and self._run is not None:
            self._stop(self._run, _ENDED)

    def kill(self) -> None:
        """End it the hard way."""
        self.cancel()
        if self._run is not None:
            self._run.kill_all()

    # -- the session --------------------------------------------------------------------------------------------------

    async def replay(self) -> None:
        """Send the client what was said so far; raises `StorageFailed`."""
        await self._store.flush().wait()
        for update in self._translator.replay(
            await trio.to_thread.run_sync(self._store.history, self._store.main_agent_id)
        ):
            self._connection.update(self.session_id, update)
            await self._sink.room()

    async def close(self) -> None:
        """End what runs, store the end, let others have the session."""
        self.cancel()
        await self._idle.wait()
        ending = self._last_ending
        if ending is None:
            await self._store.end_run(exit_codes.COMPLETE).wait_quietly()
        else:
            # A turn that the client cancelled is listed as one that a person interrupted.
            is_cancelled = ending.outcome == "cancelled"
            code = exit_codes.of_signal(signal.SIGINT) if is_cancelled else exit_codes.of_ending(ending)
            await self._conversation.close(ending, code)
        await trio.to_thread.run_sync(self._store.close)

    @property
    def _spec(self) -> AgentSpec:
        return self._settings.catalog.get(self._settings.agent_name)
