"""The shell of `supervisor.core.grants`: passes inputs to it and sends its decisions to the agents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import trio

from protocol.agent_spec import ModelSettings
from protocol.errors import ProtocolError
from protocol.frames import AskGrant, GrantAnswer
from protocol.usage import Usage
from supervisor.core.endpoint_gate import CallKey
from supervisor.core.grants import Admitted, Decision, Go, Grants, TreeLimits
from supervisor.endpoints import SharedEndpoints

REPLY_ALLOWANCE = 16_000
"""Tokens reserved for a reply without a cap of its own, while the run has a limit of tokens."""


class GrantTaker(Protocol):
    """An agent that asks for places and grants."""

    def admitted(self) -> None:
        """It has a place."""
        ...

    def tell(self, message: GrantAnswer) -> None:
        """Its ask was answered."""
        ...


class GrantGate:
    """Places and grants of all agents of a run. Every method is sync and never blocks but `run_clock`."""

    def __init__(self, limits: TreeLimits) -> None:
        self._grants = Grants(limits, reply_allowance=REPLY_ALLOWANCE)
        self._takers: dict[str, GrantTaker] = {}
        self._changed = trio.Event()
        self._endpoints: SharedEndpoints | None = None
        self._member = 0
        self._endpoint_of: dict[CallKey, str] = {}

    def share(self, endpoints: SharedEndpoints) -> None:
        """From now on calls that are granted wait for their endpoint too, which other runs use.

        A rate limit then narrows the endpoint and holds nobody: only the call that met it waits as it was told.
        """
        self._endpoints = endpoints
        self._member = endpoints.join()

    def admit(self, agent_id: str, taker: GrantTaker) -> None:
        """Ask for a place among the agents that run at once."""
        self._takers[agent_id] = taker
        self._apply(self._grants.admit(agent_id))

    def park(self, agent_id: str) -> None:
        """The agent waits for its children: it gives its place back."""
        self._apply(self._grants.park(agent_id))

    def unpark(self, agent_id: str) -> None:
        """The agent's children are done: its next ask needs a place again."""
        self._apply(self._grants.unpark(agent_id))

    def leave(self, agent_id: str) -> int:
        """The agent's process is gone. Returns how many calls it had under way."""
        under_way = self._grants.open_calls(agent_id)
        if self._endpoints is not None:
            under_way -= self._endpoints.leave(self._member, agent_id)
            self._endpoint_of = {key: name for key, name in self._endpoint_of.items() if key[1] != agent_id}
        self._apply(self._grants.leave(agent_id))
        return under_way

    def ask(self, agent_id: str, frame: AskGrant, model: ModelSettings) -> None:
        """A worker wants to make a model call; the answer goes to it when there is one."""
        endpoint = f"{model.provider} {model.base_url}"
        if self._endpoints is not None:
            self._endpoint_of[self._key(agent_id, frame.grant)] = endpoint_name(model)
        self._take(
            lambda now: self._grants.ask(now, agent_id, frame.grant, endpoint, frame.prompt_tokens, frame.max_tokens)
        )

    def settle(self, agent_id: str, grant: int, usage: Usage) -> None:
        """A granted call brought a reply that used ``usage``."""
        self._take(lambda now: self._grants.settle(now, agent_id, grant, usage))
        if self._endpoints is not None:
            self._endpoints.clean(self._key(agent_id, grant))

    def fail(self, agent_id: str, grant: int, held: float | None) -> None:
        """A granted call failed; for a rate limit its endpoint is held for ``held`` seconds."""
        if self._endpoints is None:
            self._take(lambda now: self._grants.fail(now, agent_id, grant, held))
            return
        self._take(lambda now: self._grants.fail(now, agent_id, grant, None))
        (self._endpoints.failed if held is None else self._endpoints.limited)(self._key(agent_id, grant))

    def close(self, code: str, message: str) -> None:
        """Stop all that ask, now and later."""
        self._apply(self._grants.close(code, message))

    async def run_clock(self) -> None:
        """Let held endpoints go when their time has come; runs until cancelled."""
        while True:
            self._changed = trio.Event()
            deadline = self._grants.next_deadline()
            with trio.move_on_at(float("inf") if deadline is None else deadline) as waited:
                await self._changed.wait()
            if waited.cancelled_caught:
                self._apply(self._grants.tick(trio.current_time()))

    def _take(self, decide: DecideAt) -> None:
        """Numbers come from workers: what can't be is that worker's `ProtocolError`, and changes nothing."""
        try:
            decisions = decide(trio.current_time())
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        self._apply(decisions)

    def _apply(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            taker = self._takers[decision.agent_id]
            if isinstance(decision, Admitted):
                taker.admitted()
            elif isinstance(decision, Go):
                self._let_go(decision, taker)
            else:
                code, message = decision.code, decision.message
                taker.tell(GrantAnswer(grant=decision.grant, decision="stop", code=code, message=message))
        self._changed.set()

    def _let_go(self, decision: Go, taker: GrantTaker) -> None:
        answer = GrantAnswer(grant=decision.grant, decision="go", max_tokens=decision.max_tokens)
        if self._endpoints is None:
            taker.tell(answer)
            return
        key = self._key(decision.agent_id, decision.grant)
        self._endpoints.ask(self._endpoint_of.pop(key), key, partial(taker.tell, answer))

    def _key(self, agent_id: str, grant: int) -> CallKey:
        return self._member, agent_id, grant


def endpoint_name(model: ModelSettings) -> str:
    """What shares one limit of calls at once."""
    return f"{model.provider} {model.base_url} {model.model}"


class DecideAt(Protocol):
    """An input of the machine, ready but for the time."""

    def __call__(self, now: float, /) -> list[Decision]: ...
