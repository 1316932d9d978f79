"""Run one turn of an external agent over the Agent Client Protocol.

The rules and the numbers are those of `workers.acp.session` and `workers.acp.agent_process`; here they meet the clock,
the caller and each other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import trio

from protocol.codec import clean_text
from protocol.version import installed_version
from workers.acp.agent_process import AgentProcess
from workers.acp.command import agent_environment
from workers.acp.control import AcpControl
from workers.acp.driver import Report, SessionDriver
from workers.acp.effects import Answered, Cancelled, Failed, Stopped
from workers.acp.errors import ExecOutputTail
from workers.acp.opening import EarlierSession
from workers.acp.outcome import error_of, start_failure
from workers.acp.redact import Redactor
from workers.acp.request import AcpRunRequest, AcpRunResult
from workers.acp.session import Session, SessionSettings
from workers.sandbox.sandbox import StdioProcess

_LONGEST_MESSAGE = 2_000  # characters of an error message that holds words of the agent's


async def run_acp_turn(request: AcpRunRequest) -> AcpRunResult:
    """Start the agent, hand it the prompt and all follow-ups, and end it: nothing of its process group is left.

    Errors come bare, never in a group: `AcpError`, what ``on_activity`` raised, and `trio.Cancelled` when the caller's
    scope is cancelled. The agent is ended first, in all of them, which takes 2 s where it has to be killed. A cancelled
    agent is told so, and has 500 ms more to end its prompt. To be called in the main thread.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    return await AcpTurn(request).run()


class AcpTurn:
    """One turn, for those who want more of it than its result.

    ``on_report`` is told what the agent does. With ``relays_permission`` it is asked for consent too, and
    `answer_permission` answers; otherwise the headless rule does. Where the agent can, it goes on with ``earlier``, and
    the request's prompt is for where it can't.
    """

    def __init__(
        self,
        request: AcpRunRequest,
        *,
        on_report: Callable[[Report], None] | None = None,
        relays_permission: bool = False,
        earlier: EarlierSession | None = None,
    ) -> None:
        self._request = request
        self._started = trio.current_time()
        self._control = AcpControl() if request.control is None else request.control
        settings = SessionSettings(
            prompt=request.prompt,
            cwd=str(request.cwd),
            earlier=earlier,
            deadline=None if request.timeout is None else self._started + request.timeout,
            client_version=installed_version(),
            relays_permission=relays_permission,
        )
        self._session = Session(settings, self._control)
        self._driver = SessionDriver(
            self._session, cancel=request.cancel, on_activity=request.on_activity, on_report=on_report
        )
        self._environment = agent_environment(os.environ, request.command.env, request.env)
        self._redactor = Redactor(os.environ, self._environment)
        self._spawning = trio.CancelScope()
        self._caller_gave_up = False

    async def run(self) -> AcpRunResult:
        """Run the turn to its end, once; raises as `run_acp_turn`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_caller)
            with trio.CancelScope(shield=True):
                await self._run_shielded()
            nursery.cancel_scope.cancel()
        if self._driver.failure is not None:
            raise self._driver.failure
        if self._caller_gave_up:
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._result()

    def answer_permission(self, key: int, option_id: str | None) -> None:
        """Answer the question ``key``; None, and what was not offered, stand for ``cancelled``."""
        self._driver.step(lambda _: self._session.answer_permission(key, option_id))

    def fit_to_show(self, words: str) -> str:
        """Words of the agent's, secrets replaced, controls cleaned, and cut."""
        return self._redactor.clean(clean_text(words))[:_LONGEST_MESSAGE]

    # -- the tasks; none of them raises: what goes wrong is kept until all of them are gone ---------------------------

    async def _run_shielded(self) -> None:
        self._control.connect(self._driver.interrupted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guarded, self._watch_cancel)
            nursery.start_soon(self._guarded, self._watch_clock)
            nursery.start_soon(self._guarded, self._end_spawning)
            await self._guarded(self._converse)
            nursery.cancel_scope.cancel()
        self._control.connect(None)

    async def _guarded(self, task: Callable[[], Awaitable[object]]) -> None:
        try:
            await task()
        except trio.Cancelled:
            raise
        except BaseException as error:
            self._driver.fail(_bare(error))

    async def _watch_caller(self) -> None:
        """Runs in the caller's scope, so that a cancellation of it comes here and to no other task."""
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            if not self._driver.is_over.is_set():
                # Not lost, only late: `run` raises it again once the agent is ended.
                self._caller_gave_up = True
                self._driver.step(self._session.cancel)

    async def _watch_cancel(self) -> None:
        if self._request.cancel is not None:
            await self._request.cancel.wait()
            self._driver.step(self._session.cancel)

    async def _watch_clock(self) -> None:
        while not self._driver.is_over.is_set():
            self._driver.new_deadline = trio.Event()
            deadline = self._session.next_deadline
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await self._driver.new_deadline.wait()
            self._driver.step(self._session.tick)

    async def _end_spawning(self) -> None:
        await self._driver.is_over.wait()
        self._spawning.cancel()

    async def _converse(self) -> None:
        process = await self._spawn()
        if process is None:
            return
        self._driver.agent = agent = AgentProcess(process, self._driver)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guarded, agent.pump)
            self._driver.step(lambda _: self._session.begin())
            await self._driver.is_over.wait()
            is_done = isinstance(self._driver.ending, Answered | Stopped)
            await self._guarded(partial(agent.end, is_done=is_done))
            nursery.cancel_scope.cancel()

    async def _spawn(self) -> StdioProcess | None:
        """Start the process; None where that failed, or where the turn is over already."""
        self._driver.step(self._session.tick)
        if self._driver.is_over.is_set():
            return None
        argv = self._request.command.argv
        process: StdioProcess | None = None
        with self._spawning:
            try:
                process = await self._request.sandbox.open_stdio(argv, cwd=self._request.cwd, env=self._environment)
            except Exception as error:
                if not self._driver.is_over.is_set():
                    self._driver.fail(start_failure(argv[0], error))
        return process

    # -- the outcome --------------------------------------------------------------------------------------------------

    def _result(self) -> AcpRunResult:
        agent, ending = self._driver.agent, self._driver.ending or Cancelled()
        tail = ExecOutputTail("" if agent is None else self._redactor.tail(agent.stderr))
        if isinstance(ending, Failed):
            ending = Failed(self.fit_to_show(ending.message), ending.code)
        text = self._session.text
        error = error_of(ending, text=text, timeout=self._request.timeout, tail=tail)
        if error is not None:
            raise error
        assert isinstance(ending, Answered)
        return AcpRunResult(text, ending.stop_reason, tail.stderr, trio.current_time() - self._started)


def _bare(error: BaseException) -> BaseException:
    """The first error in a group: the one that ended the others."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
