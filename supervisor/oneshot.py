"""A one-shot run: one prompt, one turn, and the lines around it.

Whatever happens once ``hello`` is written, the last lines are ``turn_summary``, ``turn_end``, ``run_summary``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import partial

import trio

from protocol.frames import Finished
from protocol.process_tree import become_subreaper, kill_strays
from supervisor import exit_codes
from supervisor.config import OneShotSettings
from supervisor.conversation import Conversation, open_store
from supervisor.core.tagger import Tagger
from supervisor.hub import Hub
from supervisor.live.server import LiveServer
from supervisor.run import Run
from supervisor.run_view import RunView
from supervisor.sinks.activity import ActivityReader
from supervisor.sinks.notes import NotesSink, write_note
from supervisor.sinks.sink import Sink
from supervisor.sinks.stdout_writer import StdoutWriter
from supervisor.sinks.table import FORMATS
from supervisor.spawn import FreshSpawner, Spawner
from supervisor.store.session_store import SessionStore

CAPABILITIES = ("one_shot", "self_answer")
STDOUT_SECONDS_AFTER_SIGNAL = 5.0
STDOUT_SECONDS_AFTER_SECOND_SIGNAL = 1.0


def run_one_shot(settings: OneShotSettings, spawner: Spawner | None = None) -> int:
    """Run ``settings.prompt`` to its end and return the exit code.

    Raises `UnknownSession`, `SessionLocked` or `StorageFailed` before anything is written on stdout.
    """
    store = open_store(settings)
    become_subreaper()
    spawner = spawner or FreshSpawner()
    try:
        return trio.run(_one_shot, settings, store, spawner)
    finally:
        store.close()
        spawner.close()
        kill_strays()


async def _one_shot(settings: OneShotSettings, store: SessionStore, spawner: Spawner) -> int:
    return await OneShot(settings, store, spawner).run()


class OneShot:
    """The turn of a one-shot run, and the ways out of it."""

    def __init__(self, settings: OneShotSettings, store: SessionStore, spawner: Spawner) -> None:
        self._settings = settings
        self._spawner = spawner
        self._store = store
        self._stdout = StdoutWriter()
        sinks: list[Sink] = [FORMATS[settings.output_format](self._stdout)]
        if not settings.quiet:
            sinks.append(NotesSink(_activity_shown(settings)))
        self._hub = Hub(Tagger(store.session_id), sinks)
        self._signals: list[int] = []
        self._last_writes = trio.CancelScope()
        for note in () if settings.quiet else settings.notes:
            write_note(note)

    async def run(self) -> int:
        """Run the turn; return the exit code."""
        settings = self._settings
        conversation = Conversation(settings, self._store, self._hub, self._spawner)
        with _signal_receiver() as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._spawner.run)
                conversation.open(CAPABILITIES)
                ending = await conversation.run_turn(settings.prompt, partial(self._watch, signals, nursery))
                code = self._exit_code(ending)
                await conversation.close(ending, code)
                with self._last_writes:
                    self._bound_last_writes()
                    await self._hub.finish()
                nursery.cancel_scope.cancel()
        return exit_codes.STDOUT_CLOSED if self._stdout.broken.is_set() else code

    def _exit_code(self, ending: Finished) -> int:
        if ending.outcome == "cancelled" and self._signals:
            return exit_codes.of_signal(self._signals[0])
        return exit_codes.of_ending(ending)

    # -- the ways out -------------------------------------------------------------------------------------------------

    async def _watch(self, signals: AsyncIterator[int], nursery: trio.Nursery, run: Run) -> None:
        """Look out for all that can end ``run`` early."""
        nursery.start_soon(self._obey_signals, signals, run)
        nursery.start_soon(self._watch_stdout, run)
        view = RunView(run, os.getpid(), partial(self._take_signal, run, signal.SIGTERM))
        if self._settings.timeout is not None:
            nursery.start_soon(self._watch_time, self._settings.timeout, run)
        note = await nursery.start(LiveServer(view, self._hub).serve)
        if note is not None and not self._settings.quiet:
            write_note(note)

    async def _obey_signals(self, signals: AsyncIterator[int], run: Run) -> None:
        """The first signal cancels the turn; a second one kills the workers at once."""
        async for number in signals:
            self._take_signal(run, number, f"ended by {signal.Signals(number).name}")

    def _take_signal(self, run: Run, number: int, why: str) -> None:
        self._signals.append(number)
        code = signal.Signals(number).name.lower()
        self._stop(run, Finished(outcome="cancelled", code=code, message=why))
        if len(self._signals) > 1:
            run.kill_all()
        self._bound_last_writes()

    async def _watch_stdout(self, run: Run) -> None:
        await self._stdout.broken.wait()
        self._stop(run, Finished(outcome="cancelled", code="stdout_closed", message="stdout was closed"))

    async def _watch_time(self, seconds: float, run: Run) -> None:
        await trio.sleep(seconds)
        message = f"the time limit of {seconds:g} s was reached"
        run.stop(Finished(outcome="limit", code="timeout", message=message))

    def _stop(self, run: Run, ending: Finished) -> None:
        # A reader that takes nothing must not keep the run from ending.
        self._hub.release()
        run.stop(ending)

    def _bound_last_writes(self) -> None:
        """After a signal, stdout has only so long to take the rest; it counts once the rest is being written."""
        if not self._signals:
            return
        again = len(self._signals) > 1
        seconds = STDOUT_SECONDS_AFTER_SECOND_SIGNAL if again else STDOUT_SECONDS_AFTER_SIGNAL
        self._last_writes.deadline = trio.current_time() + seconds


def _activity_shown(settings: OneShotSettings) -> ActivityReader | None:
    """Who reads only the reply at a terminal sees there what the agents do; others do if they ask for it."""
    watches = settings.output_format == "text" and sys.stderr.isatty()
    return ActivityReader(detailed=settings.verbose) if settings.verbose or watches else None


@contextmanager
def _signal_receiver() -> Generator[AsyncIterator[int], None, None]:
    """The signals that end a run. A SIGHUP that is ignored (nohup) stays ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        yield signals
