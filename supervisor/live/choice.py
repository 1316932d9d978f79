"""Which run, and which agent of it, a person means: by whole name, or by as much of it as no other has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from supervisor.live.errors import Ambiguous, NotFound
from supervisor.live.folder import LiveSocket
from supervisor.live.snapshot import AgentSnapshot, RunSnapshot

_Found = TypeVar("_Found")
_NAMED_AT_MOST = 5


def choose_run(words: str, live: Sequence[LiveSocket]) -> LiveSocket:
    """The run with the session id or the pid ``words``, or the only one whose session id begins so.

    Raises `NotFound` and `Ambiguous`; the empty text fits nothing.
    """
    fitting = [run for run in live if run.session_id == words] or [
        run for run in live if words and (run.session_id.startswith(words) or str(run.pid) == words)
    ]
    if not fitting:
        raise NotFound(f"there is no live run {words!r}: corral ps shows those that there are")
    return _only(fitting, words, "runs", (f"{run.session_id} (pid {run.pid})" for run in fitting))


def choose_agent(words: str, run: RunSnapshot) -> AgentSnapshot:
    """The agent with the id ``words``, or the only one whose id begins so or whose name it is; live ones come first.

    Raises `NotFound` and `Ambiguous`.
    """
    exact = [agent for agent in run.agents if agent.agent_id == words]
    near = [agent for agent in run.agents if words and (agent.agent_id.startswith(words) or agent.agent_name == words)]
    fitting = exact or [agent for agent in near if agent.is_live] or near
    if not fitting:
        raise NotFound(f"run {run.session_id} has no agent {words!r}: corral ps shows those that it has")
    return _only(fitting, words, "agents", (agent.agent_id for agent in fitting))


def _only(fitting: Sequence[_Found], words: str, kind: str, names: Iterable[str]) -> _Found:
    if len(fitting) == 1:
        return fitting[0]
    listed = list(names)
    more = f" and {len(listed) - _NAMED_AT_MOST} more" if len(listed) > _NAMED_AT_MOST else ""
    raise Ambiguous(f"{words!r} fits {len(fitting)} {kind}: {', '.join(listed[:_NAMED_AT_MOST])}{more}")
