"""No model call without a grant: the limits of the whole tree of agents, held in one place outside the agents.

A pure machine. Before each model call an agent asks; the answer is `Go` or `Stop`, at once or later. What the call may
use is reserved with its grant and settled after it, so that agents that run at once can't overspend together.

What an ask can wait for: a place (only so many agents run at once), its endpoint (one rate limit holds everybody who
uses that endpoint), and open calls of others that may give back what they reserved. Asks are looked at in the order in
which they came: one that waits for a place or an endpoint lets the others pass, one that waits for a shared limit does
not, or smaller calls could pass it for ever.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec

from protocol.usage import Usage
from supervisor.core.places import Places

_NOTHING_USED = Usage()


class TreeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What all agents of a run may use together; None: no limit.

    ``max_turns`` counts model calls that were answered, ``max_tokens_total`` their prompt and completion tokens.
    ``max_agents`` counts sub-agents over the whole run, ``max_parallel_agents`` agents that run at once (the main agent
    is one of them; who waits for sub-agents is not counted), ``max_agent_depth`` how deep they may be nested.
    """

    max_turns: int | None = None
    max_tokens_total: int | None = None
    max_agents: int = 64
    max_parallel_agents: int = 16
    max_agent_depth: int = 4


class Go(msgspec.Struct, frozen=True, kw_only=True):
    """Make the call. Its reply may have ``max_tokens`` tokens, None: as many as it likes."""

    agent_id: str
    grant: int
    max_tokens: int | None


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Do not make the call, and none after it: a limit was reached. ``code`` is its name, ``message`` a sentence."""

    agent_id: str
    grant: int
    code: str
    message: str


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The agent may start. Said once for each `Grants.admit`; an agent that returns from waiting is not told."""

    agent_id: str


Decision: TypeAlias = Go | Stop | Admitted


class _Ask(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    grant: int
    endpoint: str
    prompt_tokens: int
    max_tokens: int | None


class _OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: str
    reserved_tokens: int


class _Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why everybody is told to stop."""

    code: str
    message: str


_Key: TypeAlias = tuple[str, int]


class Grants:
    """Decides over places and model calls. Every input returns what it decided, for whichever agents, in order.

    ``now`` is in seconds on a monotonic clock; inputs without it use the last one they were given, which at worst
    leaves a hold in force until the next `tick`. An agent has to be admitted before it asks.

    Inputs that can't be (an agent that was not admitted, a grant number that is in use, a settlement without a grant)
    raise ValueError and change nothing: numbers come from workers, so the supervisor treats it as their protocol error.
    """

    def __init__(
        self, limits: TreeLimits, used_before: Usage = _NOTHING_USED, *, reply_allowance: int | None = None
    ) -> None:
        """``used_before`` counts against the limits, as what the session used before this run.

        ``reply_allowance`` bounds what an ask without ``max_tokens`` reserves for its reply while ``max_tokens_total``
        is set, in tokens. None: it reserves all that is left, so such calls go one after the other.
        """
        self._limits = limits
        self._reply_allowance = reply_allowance
        self._settled_calls = used_before.api_calls
        self._settled_tokens = used_before.total_tokens
        self._places = Places(limits.max_parallel_agents)
        self._open: dict[_Key, _OpenCall] = {}
        self._waiting: dict[_Key, _Ask] = {}
        self._held_until: dict[str, float] = {}
        self._closed: _Reason | None = None
        self._now = -math.inf

    def admit(self, agent_id: str) -> list[Decision]:
        """An agent wants to start. `Admitted` comes at once or when a place is free, in the order of these calls."""
        self._places.enter(agent_id)
        return self._decide()

    def park(self, agent_id: str) -> list[Decision]:
        """The agent waits for its sub-agents and gives its place back; no effect if it does already."""
        self._places.park(agent_id)
        return self._decide()

    def unpark(self, agent_id: str) -> list[Decision]:
        """The agent's sub-agents are done. Its next ask waits until it has a place again, before all newcomers."""
        self._places.unpark(agent_id)
        return self._decide()

    def open_calls(self, agent_id: str) -> int:
        """How many of the agent's calls are under way. Before `leave`: how many may have been billed unseen."""
        return sum(agent == agent_id for agent, _ in self._open)

    def leave(self, agent_id: str) -> list[Decision]:
        """The agent's process is gone: its place, its asks and its open calls with what they reserved are given up.

        The agent can be admitted again, as for a restart.
        """
        self._places.leave(agent_id)
        for calls in (self._open, self._waiting):
            for key in [key for key in calls if key[0] == agent_id]:
                del calls[key]
        return self._decide()

    def ask(
        self, now: float, agent_id: str, grant: int, endpoint: str, prompt_tokens: int, max_tokens: int | None
    ) -> list[Decision]:
        """May ``agent_id`` make a model call? `Go` or `Stop` with this ``grant`` comes exactly once, now or later.

        ``endpoint`` names whom a rate limit would hold, ``prompt_tokens`` is the estimate of the prompt, ``max_tokens``
        the most its reply may have. A parked agent that asks is done with waiting.
        """
        key = (agent_id, grant)
        if agent_id not in self._places:
            raise ValueError(f"agent {agent_id!r} asks for a model call without being admitted")
        if key in self._open or key in self._waiting:
            raise ValueError(f"agent {agent_id!r} asks twice with the grant {grant}")
        if prompt_tokens < 0 or (max_tokens is not None and max_tokens < 1):
            raise ValueError(f"agent {agent_id!r} asks for {prompt_tokens} and {max_tokens} tokens")
        self._places.unpark(agent_id)
        self._waiting[key] = _Ask(
            agent_id=agent_id, grant=grant, endpoint=endpoint, prompt_tokens=prompt_tokens, max_tokens=max_tokens
        )
        return self.tick(now)

    def settle(self, now: float, agent_id: str, grant: int, usage: Usage) -> list[Decision]:
        """The call was answered and used ``usage``; what else it had reserved is free again."""
        self._close_call(agent_id, grant)
        self._settled_calls += 1
        self._settled_tokens += usage.total_tokens
        return self.tick(now)

    def fail(self, now: float, agent_id: str, grant: int, hold: float | None) -> list[Decision]:
        """The call was not answered: it counts nothing, and all it had reserved is free again.

        ``hold`` is the time, in seconds, for which its endpoint gets no calls from anybody: a rate limit. A hold never
        shortens one that is in force. None: no rate limit.
        """
        call = self._close_call(agent_id, grant)
        if hold is not None and 0 < hold < math.inf:
            self._held_until[call.endpoint] = max(self._held_until.get(call.endpoint, -math.inf), now + hold)
        return self.tick(now)

    def tick(self, now: float) -> list[Decision]:
        """Time has passed; to be called at `next_deadline`, any other time is harmless."""
        self._now = max(self._now, now)
        self._held_until = {name: until for name, until in self._held_until.items() if until > self._now}
        return self._decide()

    def next_deadline(self) -> float | None:
        """When a `tick` can next decide something: the end of the first hold that somebody waits for, None: never."""
        endpoints = {ask.endpoint for ask in self._waiting.values()}
        return min((until for name, until in self._held_until.items() if name in endpoints), default=None)

    def close(self, code: str, message: str) -> list[Decision]:
        """All that wait and all that ask from now on get `Stop` with ``code`` and ``message``; the first close counts.

        Open calls may still be settled, and agents still get places, so that they can be told.
        """
        if self._closed is None:
            self._closed = _Reason(code=code, message=message)
        return self._decide()

    def _close_call(self, agent_id: str, grant: int) -> _OpenCall:
        try:
            return self._open.pop((agent_id, grant))
        except KeyError:
            raise ValueError(f"agent {agent_id!r} has no open call with the grant {grant}") from None

    def _decide(self) -> list[Decision]:
        """Give away what is free: places, then grants."""
        decisions: list[Decision] = [Admitted(agent_id=agent_id) for agent_id in self._places.fill()]
        is_blocked = False
        for key, ask in list(self._waiting.items()):
            if reason := self._closed or self._reached_limit(ask):
                decision: Go | Stop = Stop(
                    agent_id=ask.agent_id, grant=ask.grant, code=reason.code, message=reason.message
                )
            elif is_blocked or not self._places.holds(ask.agent_id) or ask.endpoint in self._held_until:
                continue
            elif self._must_wait_for_others(ask):
                is_blocked = True
                continue
            else:
                decision = self._go(key, ask)
            del self._waiting[key]
            decisions.append(decision)
        return decisions

    def _reached_limit(self, ask: _Ask) -> _Reason | None:
        """The limit that leaves no room for the call, even if no open call used what it reserved."""
        turns, tokens = self._limits.max_turns, self._limits.max_tokens_total
        if turns is not None and self._settled_calls >= turns:
            return _Reason(code="max_turns", message=f"The limit of {turns} model calls for this run is reached.")
        if tokens is not None and tokens - self._settled_tokens <= ask.prompt_tokens:
            left = max(tokens - self._settled_tokens, 0)
            return _Reason(
                code="max_tokens_total",
                message=f"Of the limit of {tokens} tokens for this run {left} are left, too few for the next call "
                f"with its prompt of about {ask.prompt_tokens}.",
            )
        return None

    def _must_wait_for_others(self, ask: _Ask) -> bool:
        """Whether the call fits only if open calls give back some of what they reserved."""
        turns, left = self._limits.max_turns, self._unreserved_tokens()
        if turns is not None and self._settled_calls + len(self._open) >= turns:
            return True
        return left is not None and left <= ask.prompt_tokens

    def _go(self, key: _Key, ask: _Ask) -> Go:
        left = self._unreserved_tokens()
        max_tokens = ask.max_tokens
        if left is not None:
            wanted = ask.max_tokens if ask.max_tokens is not None else self._reply_allowance
            room = left - ask.prompt_tokens
            max_tokens = room if wanted is None else min(wanted, room)
        self._open[key] = _OpenCall(endpoint=ask.endpoint, reserved_tokens=ask.prompt_tokens + (max_tokens or 0))
        return Go(agent_id=ask.agent_id, grant=ask.grant, max_tokens=max_tokens)

    def _unreserved_tokens(self) -> int | None:
        """What of ``max_tokens_total`` is neither used nor reserved; None without that limit."""
        if self._limits.max_tokens_total is None:
            return None
        reserved = sum(call.reserved_tokens for call in self._open.values())
        return self._limits.max_tokens_total - self._settled_tokens - reserved
