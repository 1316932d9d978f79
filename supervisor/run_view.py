"""The run as a second shell sees it: what `supervisor.live` shows and asks for, on a real run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from protocol.frames import Finished
from supervisor.agent_life import AgentLife
from supervisor.live.snapshot import AgentSnapshot, RunSnapshot, agent_snapshot
from supervisor.run import Run


class RunView:
    """Implements `supervisor.live.snapshot.LiveRun`. ``cancel`` ends the run as a SIGTERM would, with the reason."""

    def __init__(self, run: Run, pid: int, cancel: Callable[[str], None]) -> None:
        self._run = run
        self._pid = pid
        self._cancel = cancel
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def snapshot(self) -> RunSnapshot:
        """The run as it is now."""
        settings = self._run.settings
        return RunSnapshot(
            session_id=self._run.store.session_id,
            pid=self._pid,
            project_root=str(settings.project_root),
            model=settings.model.model,
            started=self._started,
            agents=tuple(self._agent(life) for life in self._run.lives.values()),
        )

    def cancel_agent(self, agent_id: str, reason: str) -> bool:
        """Cancel one agent and its descendants; False if it is unknown or has ended."""
        life = self._run.lives.get(agent_id)
        if life is None or life.ended.is_set():
            return False
        life.cancel(Finished(outcome="cancelled", code="cancelled", message=reason))
        return True

    def cancel_run(self, reason: str) -> None:
        """End the run."""
        self._cancel(reason)

    def _agent(self, life: AgentLife) -> AgentSnapshot:
        return agent_snapshot(
            self._run.tree[life.agent_id],
            pid=life.pid,
            age_ms=life.elapsed_ms,
            usage=self._run.usage.total(life.agent_id),
            memory_bytes=life.frames.memory_bytes or None if life.pid is not None else None,
        )
