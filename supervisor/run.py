"""One run: a tree of agents that live in one nursery, and what they share.

The pure machines decide (`agent_tree`, `usage_tree`, `grants`, `tagger`); this shell passes inputs to them and carries
out what they say.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from protocol.agent_spec import AgentSpec, ModelSettings, Trust
from protocol.frames import AskGrant, ChildResult, Finished, GrantAnswer, SpawnRequest, Start
from protocol.records import AgentSummary, SubAgentEnd, SubAgentStart
from protocol.tool_names import tools_of
from protocol.usage import Usage
from supervisor.agents import narrower_trust
from supervisor.config import OneShotSettings
from supervisor.core.agent_tree import AgentTree
from supervisor.core.child_report import child_report
from supervisor.core.grants import Admitted, Decision, Go, Grants
from supervisor.core.usage_tree import UsageTree
from supervisor.errors import StorageFailed, SupervisorError
from supervisor.hub import Hub
from supervisor.model_choice import for_agent
from supervisor.store.session_store import SessionStore
from supervisor.worker_life import Assignment, WorkerLife

MAIN_ITERATIONS = 200
CHILD_ITERATIONS = 30
"""Model calls in a turn where the agent sets no ``max_iterations``. Source: the wire contract."""


class Run:
    """The agents of one process's part of a session.

    Everything is called in trio's thread; what is sync never blocks. ``stop`` is set when something other than an agent
    ends the run: it holds the ending and the exit code is decided by it.
    """

    def __init__(self, settings: OneShotSettings, store: SessionStore, hub: Hub, nursery: trio.Nursery) -> None:
        self.settings = settings
        self.store = store
        self.hub = hub
        self.tree = AgentTree()
        self.usage = UsageTree(base=store.usage_by_agent())
        self.uncertain_calls = store.uncertain_calls()
        self.stopped_by: Finished | None = None
        self._grants = Grants(settings.limits)
        self._grants_changed = trio.Event()
        self._nursery = nursery
        self._lives: dict[str, WorkerLife] = {}
        self._assignments: dict[str, Assignment] = {}
        self._agents_made = 0

    # -- agents -------------------------------------------------------------------------------------------------------

    def start_main(self, prompt: str) -> WorkerLife:
        """Start the main agent; it goes on from the session's stored transcript."""
        agent_id = self.store.main_agent_id
        spec = self.settings.catalog.get(self.settings.agent_name)
        start = self._start(agent_id, spec, self.settings.model, self.settings.trust, is_main=True)
        self.tree.add(agent_id, agent_name="main")
        self.usage.add_node(agent_id, None, "main")
        self.hub.tagger.know_agent(agent_id, None, "main")
        return self._begin(Assignment(start=start, history=self.store.history(agent_id), prompt=prompt))

    def start_child(self, parent: WorkerLife, request: SpawnRequest) -> None:
        """Start the sub-agent that ``parent`` asks for, or tell it why not. Its end comes as a `ChildResult`."""
        refusal = self.tree.may_spawn(parent.agent_id, self.settings.limits)
        if refusal is not None:
            self._refuse(parent, request, Finished(outcome="limit", code=refusal.code, message=refusal.message))
            return
        assignment = self._assignments[parent.agent_id].start
        try:
            spec = self.settings.catalog.get(request.agent_name)
            model = for_agent(spec, assignment.model, self.settings.environ)
        except SupervisorError as error:
            self._refuse(parent, request, Finished(outcome="error", code=error.code, message=str(error)))
            return
        self._agents_made += 1
        agent_id = f"{request.agent_name}-{self.store.epoch}-{self._agents_made}"
        trust = narrower_trust(assignment.trust, spec)
        self.tree.add(agent_id, parent_agent_id=parent.agent_id, parent_call_id=request.call_id, agent_name=spec.name)
        self.usage.add_node(agent_id, parent.agent_id, spec.name)
        self.hub.tagger.know_agent(agent_id, request.call_id, spec.name)
        self.store.add_agent(agent_id, parent.agent_id, request.call_id, spec.name, request.prompt)
        self.hub.publish(SubAgentStart(agent_name=spec.name, agent_id=agent_id, prompt=request.prompt), agent_id)
        start = self._start(agent_id, spec, model, trust, is_main=False)
        life = self._begin(Assignment(start=start, history=(), prompt=request.prompt))
        self._apply(self._grants.park(parent.agent_id))
        self._nursery.start_soon(self._hand_back, parent, request, life)

    def _start(self, agent_id: str, spec: AgentSpec, model: ModelSettings, trust: Trust, *, is_main: bool) -> Start:
        return Start(
            agent_id=agent_id,
            spec=spec,
            model=model,
            project_root=str(self.settings.project_root),
            trust=trust,
            is_main=is_main,
            tools=tools_of(spec),
            agents={name: agent.description for name, agent in self.settings.catalog.specs().items()},
            max_iterations=spec.max_iterations or (MAIN_ITERATIONS if is_main else CHILD_ITERATIONS),
            retry_delay=self.settings.retry_delay,
        )

    def _begin(self, assignment: Assignment) -> WorkerLife:
        life = WorkerLife(self, assignment)
        self._lives[life.agent_id] = life
        self._assignments[life.agent_id] = assignment
        self._nursery.start_soon(life.live)
        return life

    def _refuse(self, parent: WorkerLife, request: SpawnRequest, ending: Finished) -> None:
        text = child_report(request.agent_name, ending)
        parent.tell(ChildResult(request=request.request, outcome=ending.outcome, text=text))

    async def _hand_back(self, parent: WorkerLife, request: SpawnRequest, life: WorkerLife) -> None:
        await life.ended.wait()
        if not any(child.is_live for child in self.tree.children(parent.agent_id)):
            self._apply(self._grants.unpark(parent.agent_id))
        text = child_report(life.agent_name, life.ending, life.last_text)
        parent.tell(ChildResult(request=request.request, outcome=life.ending.outcome, text=text))

    def agent_over(self, life: WorkerLife, *, is_dead: bool) -> None:
        """Write the end of ``life``'s agent. ``is_dead``: its process died; a call it had in flight is uncertain."""
        agent_id = life.agent_id
        uncertain = self._grants.open_calls(agent_id) if is_dead else 0
        self.uncertain_calls += uncertain
        self._apply(self._grants.leave(agent_id))
        self.tree.end(agent_id, life.ending.outcome)
        self.store.end_agent(agent_id, life.ending.outcome, uncertain)
        if self.tree[agent_id].parent_agent_id is None:
            return
        end = SubAgentEnd(
            agent_name=life.agent_name,
            agent_id=agent_id,
            outcome=life.ending.outcome,
            usage=self.usage.total(agent_id),
            elapsed_ms=life.elapsed_ms,
            restarts=0,
        )
        self.hub.publish(end, agent_id)

    async def end_children(self, agent_id: str) -> None:
        """Cancel the children of ``agent_id`` that still live and wait for their ends."""
        ending = Finished(outcome="cancelled", code="cancelled", message="the agent that asked for it ended")
        lives = [self._lives[child.agent_id] for child in self.tree.children(agent_id)]
        for life in lives:
            life.cancel(ending)
        for life in lives:
            await life.ended.wait()

    def summaries(self) -> tuple[AgentSummary, ...]:
        """The tree of agents of this run, parents before children."""
        return tuple(
            AgentSummary(
                agent_id=node.agent_id,
                parent_id=node.parent_call_id,
                parent_agent_id=node.parent_agent_id,
                agent_name=node.agent_name,
                outcome=node.outcome or "cancelled",
                usage=self.usage.total(node.agent_id),
                restarts=node.restarts,
            )
            for node in self.tree.nodes
        )

    # -- the end of the run -------------------------------------------------------------------------------------------

    def stop(self, ending: Finished) -> None:
        """End every agent: the main agent as ``ending`` says, all others as cancelled. The first call counts."""
        if self.stopped_by is not None:
            return
        self.stopped_by = ending
        self._apply(self._grants.close(ending.code, ending.message))
        child_ending = Finished(outcome="cancelled", code=ending.code, message=ending.message)
        for agent_id, life in self._lives.items():
            life.cancel(ending if self.tree[agent_id].parent_agent_id is None else child_ending)

    def kill_all(self) -> None:
        """Kill every worker at once; their agents end as cancelled if the run was stopped before."""
        for life in self._lives.values():
            life.kill()

    def storage_failed(self, error: StorageFailed) -> None:
        """A commit could not be written: no tool runs without its row, so the run ends."""
        self.stop(Finished(outcome="error", code=error.code, message=str(error)))

    # -- grants -------------------------------------------------------------------------------------------------------

    def admit(self, agent_id: str) -> None:
        """Ask for a place among the agents that run at once."""
        self._apply(self._grants.admit(agent_id))

    def ask(self, agent_id: str, frame: AskGrant, model: ModelSettings) -> None:
        """A worker wants to make a model call; the answer goes to it when there is one."""
        self._apply(
            self._grants.ask(
                trio.current_time(),
                agent_id,
                frame.grant,
                f"{model.provider} {model.base_url}",
                frame.prompt_tokens,
                frame.max_tokens,
            )
        )

    def count(self, agent_id: str, grant: int, usage: Usage) -> None:
        """A granted call brought a reply that used ``usage``."""
        self.usage.add(agent_id, usage)
        self._apply(self._grants.settle(trio.current_time(), agent_id, grant, usage))

    def call_failed(self, agent_id: str, grant: int, held: float | None) -> None:
        """A granted call failed; for a rate limit the endpoint is held for ``held`` seconds."""
        self._apply(self._grants.fail(trio.current_time(), agent_id, grant, held))

    async def run_grant_clock(self) -> None:
        """Let held endpoints go when their time has come; runs until cancelled."""
        while True:
            self._grants_changed = trio.Event()
            deadline = self._grants.next_deadline()
            with trio.move_on_at(float("inf") if deadline is None else deadline):
                await self._grants_changed.wait()
                continue
            self._apply(self._grants.tick(trio.current_time()))

    def _apply(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            life = self._lives[decision.agent_id]
            if isinstance(decision, Admitted):
                life.admitted.set()
            elif isinstance(decision, Go):
                life.tell(GrantAnswer(grant=decision.grant, decision="go", max_tokens=decision.max_tokens))
            else:
                life.tell(
                    GrantAnswer(grant=decision.grant, decision="stop", code=decision.code, message=decision.message)
                )
        self._grants_changed.set()
