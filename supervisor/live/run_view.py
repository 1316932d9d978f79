"""A run of this process, as live control sees it."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from protocol.frames import Finished
from supervisor.live.snapshot import AgentSnapshot, RunSnapshot, agent_snapshot

if TYPE_CHECKING:
    from supervisor.core.agent_tree import AgentNode
    from supervisor.run import Run


class RunView:
    """The `LiveRun` of a process with one run, which obeys its signals."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def snapshot(self) -> RunSnapshot:
        """The run as it is now."""
        settings = self._run.settings
        return RunSnapshot(
            session_id=self._run.store.session_id,
            pid=os.getpid(),
            project_root=str(settings.project_root),
            model=settings.model.model,
            started=self._started,
            agents=tuple(self._agent(node) for node in self._run.tree.nodes),
        )

    def cancel_agent(self, agent_id: str, reason: str) -> bool:
        """Cancel the agent and its descendants; False if it has ended or is unknown."""
        life = self._run.lives.get(agent_id)
        if life is None or life.ended.is_set():
            return False
        life.cancel(Finished(outcome="cancelled", code="cancelled", message=reason))
        return True

    def cancel_run(self, reason: str) -> None:
        """Send this process the signal whose way out it shall take; the run says itself what ended it."""
        del reason
        os.kill(os.getpid(), signal.SIGTERM)

    def _agent(self, node: AgentNode) -> AgentSnapshot:
        life = self._run.lives[node.agent_id]
        return agent_snapshot(
            node,
            pid=life.pid,
            age_ms=life.elapsed_ms,
            usage=self._run.usage.total(node.agent_id),
            memory_bytes=None if life.pid is None else life.frames.memory_bytes or None,
        )
