"""One run: the tree of agents of one turn, which live in one nursery, and what they share.

The pure machines decide (`agent_tree`, `usage_tree`, `grants`, `tagger`); this shell passes inputs to them and carries
out what they say.
"""

from __future__ import annotations

import trio

from protocol.agent_spec import AgentSpec, ModelSettings, Trust
from protocol.content import Message
from protocol.frames import ChildResult, Finished, SpawnRequest, Start
from protocol.records import AgentSummary, SubAgentEnd, SubAgentStart
from protocol.tool_names import tools_of
from supervisor.admission import Admission
from supervisor.agent_life import AgentLife, Assignment
from supervisor.agents import narrower_trust
from supervisor.approval import Approver, NobodyThere
from supervisor.cgroups import RunCgroups
from supervisor.config import OneShotSettings
from supervisor.core.agent_tree import AgentTree
from supervisor.core.child_report import child_report
from supervisor.core.usage_tree import UsageTree
from supervisor.errors import StorageFailed, SupervisorError
from supervisor.grant_gate import GrantGate
from supervisor.hub import Hub
from supervisor.model_choice import for_agent
from supervisor.spawn import Spawner
from supervisor.store.session_store import SessionStore

MAIN_ITERATIONS = 200
CHILD_ITERATIONS = 30
"""Model calls in a turn where the agent sets no ``max_iterations``. Source: the wire contract."""


class Run:
    """The agents of one turn.

    Everything is called in trio's thread; what is sync never blocks.
    """

    def __init__(
        self,
        settings: OneShotSettings,
        store: SessionStore,
        hub: Hub,
        spawner: Spawner,
        nursery: trio.Nursery,
        before: Run | None = None,
    ) -> None:
        """``before`` is the run of the turn before this one in the same process; its agents' ids are not used again."""
        self.settings = settings
        self.store = store
        self.hub = hub
        self.spawner = spawner
        self.tree = AgentTree()
        self.usage: UsageTree = UsageTree(
            base=before.usage.by_name(with_base=True) if before else store.usage_by_agent()
        )
        self.grants = GrantGate(settings.limits)
        self.admission = Admission(settings.memory, hub, self._memory_in_use)
        self.cgroups = RunCgroups(settings.ceilings.memory_bytes, settings.memory.tree)
        self.uncertain_calls: int = before.uncertain_calls if before else store.uncertain_calls()
        self.approver: Approver = NobodyThere()
        self.lives: dict[str, AgentLife] = {}
        self._children_made: int = before._children_made if before else 0
        self._uncertain: dict[str, int] = {}
        self._is_stopped = False
        self._nursery = nursery

    # -- agents -------------------------------------------------------------------------------------------------------

    def start_main(self, prompt: str) -> AgentLife:
        """Start the main agent; it goes on from the session's stored transcript."""
        agent_id = self.store.main_agent_id
        spec = self.settings.catalog.get(self.settings.agent_name)
        start = self._start(agent_id, spec, self.settings.model, self.settings.trust, is_main=True)
        self.tree.add(agent_id, agent_name="main")
        self.usage.add_node(agent_id, None, "main")
        self.hub.tagger.know_agent(agent_id, None, "main")
        return self._begin(Assignment(start=start, history=self.store.history(agent_id), prompt=prompt))

    def start_child(self, parent: AgentLife, request: SpawnRequest) -> None:
        """Start the sub-agent that ``parent`` asks for, or tell it why not. Its end comes as a `ChildResult`."""
        refusal = self.tree.may_spawn(parent.agent_id, self.settings.limits)
        if refusal is not None:
            self._refuse(parent, request, Finished(outcome="limit", code=refusal.code, message=refusal.message))
            return
        try:
            spec = self.settings.catalog.get(request.agent_name)
            model = for_agent(spec, parent.start.model, self.settings.environ, self.settings.providers)
        except SupervisorError as error:
            self._refuse(parent, request, Finished(outcome="error", code=error.code, message=str(error)))
            return
        self._children_made += 1
        agent_id = f"{spec.name}-{self.store.epoch}-{self._children_made}"
        trust = narrower_trust(parent.start.trust, spec)
        self.tree.add(agent_id, parent_agent_id=parent.agent_id, parent_call_id=request.call_id, agent_name=spec.name)
        self.usage.add_node(agent_id, parent.agent_id, spec.name)
        self.hub.tagger.know_agent(agent_id, request.call_id, spec.name)
        self.store.add_agent(agent_id, parent.agent_id, request.call_id, spec.name, request.prompt)
        record = SubAgentStart(agent_name=spec.name, agent_id=agent_id, prompt=request.prompt)
        self.hub.publish(record, agent_id)
        start = self._start(agent_id, spec, model, trust, is_main=False)
        self.wait_for_children(parent.agent_id)
        life = self._begin(Assignment(start=start, history=(), prompt=request.prompt))
        self._nursery.start_soon(self._hand_back, parent, request, life)

    def wait_for_children(self, agent_id: str) -> None:
        """An agent that waits for its children gives its place back; the end of the last of them takes it up again."""
        self.grants.park(agent_id)
        self.tree.set_state(agent_id, "waiting")

    def _start(self, agent_id: str, spec: AgentSpec, model: ModelSettings, trust: Trust, *, is_main: bool) -> Start:
        settings = self.settings
        return Start(
            agent_id=agent_id,
            spec=spec,
            model=model,
            project_root=str(settings.project_root),
            trust=trust,
            is_main=is_main,
            tools=tools_of(spec),
            agents={name: agent.description for name, agent in settings.catalog.specs().items()},
            max_iterations=spec.max_iterations or (MAIN_ITERATIONS if is_main else CHILD_ITERATIONS),
            retry_delay=settings.retry_delay,
            heartbeat=settings.worker_times.silence / 3,
            ceilings=settings.ceilings,
            pass_env=settings.pass_env,
            environment=settings.environment,
            external=self.store.external_session(agent_id, spec.name) if is_main and spec.acp is not None else None,
        )

    def _begin(self, assignment: Assignment) -> AgentLife:
        life = AgentLife(self, assignment, self._nursery)
        self.lives[life.agent_id] = life
        self._nursery.start_soon(life.live)
        return life

    def _refuse(self, parent: AgentLife, request: SpawnRequest, ending: Finished) -> None:
        text = child_report(request.agent_name, ending)
        parent.hand_back(ChildResult(request=request.request, outcome=ending.outcome, text=text))

    async def _hand_back(self, parent: AgentLife, request: SpawnRequest, life: AgentLife) -> None:
        await life.ended.wait()
        node = self.tree[parent.agent_id]
        if node.state == "waiting" and not any(child.is_live for child in self.tree.children(parent.agent_id)):
            self.grants.unpark(parent.agent_id)
            self.tree.set_state(parent.agent_id, "running")
        text = child_report(life.agent_name, life.ending, life.frames.last_text)
        parent.hand_back(ChildResult(request=request.request, outcome=life.ending.outcome, text=text))

    def agent_over(self, life: AgentLife) -> None:
        """Write the end of ``life``'s agent."""
        agent_id, outcome = life.agent_id, life.ending.outcome
        # A call that was under way when its agent was cancelled may have been billed as well.
        self.count_uncertain(agent_id, self.grants.leave(agent_id))
        restarts = self.tree.end(agent_id, outcome).restarts
        self.store.end_agent(agent_id, outcome, self._uncertain.get(agent_id, 0))
        if self.tree[agent_id].parent_agent_id is None:
            return
        end = SubAgentEnd(
            agent_name=life.agent_name,
            agent_id=agent_id,
            outcome=outcome,
            usage=self.usage.total(agent_id),
            elapsed_ms=life.elapsed_ms,
            restarts=restarts,
        )
        self.hub.publish(end, agent_id)

    async def end_children(self, agent_id: str) -> None:
        """Cancel the children of ``agent_id`` that still live and wait for their ends."""
        ending = Finished(outcome="cancelled", code="cancelled", message="the agent that asked for it ended")
        lives = [self.lives[child.agent_id] for child in self.tree.children(agent_id)]
        for life in lives:
            life.cancel(ending)
        for life in lives:
            await life.ended.wait()

    def count_uncertain(self, agent_id: str, calls: int) -> None:
        """``calls`` of the agent were in flight when its process died: the server may have billed them."""
        self.uncertain_calls += calls
        self._uncertain[agent_id] = self._uncertain.get(agent_id, 0) + calls

    async def read_history(self, agent_id: str) -> tuple[Message, ...]:
        """All that is committed of an agent's transcript; raises `StorageFailed`."""
        await self.store.flush().wait()
        return await trio.to_thread.run_sync(self.store.history, agent_id)

    def _memory_in_use(self) -> tuple[int, int]:
        """The bytes that all agents use, and how many are at work.

        Where all wait for sub-agents none is: then one of these must start.
        """
        lives = [life for life in self.lives.values() if life.worker is not None]
        at_work = [life for life in lives if self.tree[life.agent_id].state != "waiting"]
        return sum(life.frames.memory_bytes for life in lives), len(at_work)

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
        if self._is_stopped:
            return
        self._is_stopped = True
        self.grants.close(ending.code, ending.message)
        child_ending = Finished(outcome="cancelled", code=ending.code, message=ending.message)
        for agent_id, life in self.lives.items():
            life.cancel(ending if self.tree[agent_id].parent_agent_id is None else child_ending)

    def kill_all(self) -> None:
        """Kill every worker at once; call `stop` first, so that their agents end as it says."""
        for life in self.lives.values():
            life.kill()

    def storage_failed(self, error: StorageFailed) -> None:
        """A commit could not be written: no tool runs without its row, so the run ends."""
        self.stop(Finished(outcome="error", code=error.code, message=str(error)))
