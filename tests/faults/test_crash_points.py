"""A turn whose worker dies anywhere, any number of times: the machines of both sides together, without processes.

What a worker had sent has come; what it was about to send is lost. Whatever the points of its deaths, the turn ends as
it would have, each call is told to the client once, and no command is run twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.content import AssistantMessage, Message, ToolCall, ToolResult
from protocol.frames import AskGrant, ChildResult, Commit, Finished, GrantAnswer, Resume, SpawnRequest, ToolCallOpened
from protocol.records import ToolCallResult
from protocol.tool_names import TOOL_EFFECTS
from protocol.usage import Usage
from supervisor.core.open_delegations import OpenDelegations
from supervisor.core.resumption import plan_resumption
from tests.workers.core.test_turn import TOOLS, USED, start
from workers.core.effects import CallModel, Effect, RunTool, Send, TakeUp
from workers.core.transcript import Transcript
from workers.core.turn import Turn
from workers.providers.provider import ModelReply

Script = list[list[str]]
"""The names of the tools that each reply calls; a last reply, of text, comes behind them."""


class Ledger:
    """What the supervisor keeps of one agent."""

    def __init__(self) -> None:
        self.history: list[Message] = []
        self.open: list[ToolCall] = []
        self.results: dict[str, ToolResult] = {}
        self.delegations = OpenDelegations()
        self.iterations = 0
        self.usage = Usage()
        self.calls_under_way = 0
        self.uncertain = 0
        self.started: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.finished: Finished | None = None

    def take(self, message: object) -> None:
        match message:
            case AskGrant():
                self.calls_under_way += 1
            case ToolCallOpened(call=call):
                self.started[call.id] += 1
                self.open.append(call)
            case ToolCallResult(id=call_id, name=name, outcome=outcome, output=output):
                self._close(call_id)
                self.results[call_id] = ToolResult(call_id=call_id, name=name, outcome=outcome, output=output)
            case Commit(messages=messages, usage=usage, iterations=iterations):
                self.history += messages
                self.iterations = max(self.iterations, iterations)
                if usage is not None:
                    self.calls_under_way -= 1
                    self.usage += usage
                if any(isinstance(each, ToolResult) for each in messages):
                    self.results.clear()
                    self.delegations.forget()
            case Finished():
                self.finished = message
            case _:
                pass

    def restart(self) -> tuple[Resume, list[ChildResult]]:
        self.uncertain += self.calls_under_way
        self.calls_under_way = 0
        plan = plan_resumption(self.history, self.results, self.open, self.delegations.requests)
        for call in plan.opened:
            self.take(ToolCallOpened(call=call))
        for result in plan.ended:
            self._close(result.call_id)
            self.results[result.call_id] = result
        resume = Resume(iterations=self.iterations, results=plan.results, delegations=plan.delegations)
        return resume, self.delegations.results(plan.delegations.values())

    def _close(self, call_id: str) -> None:
        self.open = [call for call in self.open if call.id != call_id]
        self.ended[call_id] += 1


class World:
    """Runs workers until one finishes the turn; ``crashes`` has the number of steps that each dying one still makes."""

    def __init__(self, script: Script, crashes: Sequence[tuple[int, int]], choices: Sequence[int]) -> None:
        self.script = script
        self.crashes = list(crashes)
        self.choices = list(choices)
        self.ledger = Ledger()
        self.ran: Counter[str] = Counter()
        self.children: Counter[str] = Counter()
        self.billed = Usage()

    def run(self) -> None:
        while self.ledger.finished is None:
            turn = Turn(start(), TOOLS, dict(TOOL_EFFECTS), Transcript(self.ledger.history))
            if self.ledger.history:
                resume, _arrived = self.ledger.restart()
                first = turn.resume(resume)
            else:
                first = turn.begin("go")
            self.run_worker(turn, first)

    def run_worker(self, turn: Turn, first: list[Effect]) -> None:
        steps, kept = self.crashes.pop(0) if self.crashes else (10_000, 0)
        waiting: list[Effect] = []
        effects = first
        while True:
            # It dies after some of what this step asks for.
            is_last = steps == 0
            self.carry_out(effects[:kept] if is_last else effects, waiting)
            if is_last or self.ledger.finished is not None:
                return
            steps -= 1
            choice = self.choices.pop(0) if self.choices else 0
            effects = self.answer(turn, waiting.pop(choice % len(waiting)))

    def carry_out(self, effects: list[Effect], waiting: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    self.ledger.take(message)
                    if isinstance(message, (AskGrant, Commit)):
                        waiting.append(effect)
                case RunTool(_, call) if call.name == "InvokeAgent":
                    number = self.ledger.delegations.last_request + 1
                    self.children[call.id] += 1
                    self.ledger.delegations.ask(
                        SpawnRequest(request=number, call_id=call.id, agent_name="task", prompt="look")
                    )
                    waiting.append(effect)
                case RunTool(_, call):
                    self.ran[call.id] += 1
                    waiting.append(effect)
                case _:
                    waiting.append(effect)

    def answer(self, turn: Turn, effect: Effect) -> list[Effect]:
        match effect:
            case Send(AskGrant(grant=grant)):
                return turn.granted(GrantAnswer(grant=grant, decision="go"))
            case Send(Commit(number=number)):
                return turn.committed(number)
            case CallModel(request):
                replies = sum(isinstance(message, AssistantMessage) for message in request.messages)
                self.billed += USED
                return turn.replied(self.reply(replies))
            case RunTool(index, _):
                return turn.tool_done(index, "success", "ok", 1)
            case TakeUp(index, _, request):
                assert request in self.ledger.delegations.requests.values()
                return turn.tool_done(index, "success", "found", 1)
            case _:
                raise AssertionError(effect)

    def reply(self, number: int) -> ModelReply:
        if number == len(self.script):
            return ModelReply(message=AssistantMessage(text="Done."), usage=USED, finish="stop")
        calls = tuple(
            ToolCall(id=f"{number}-{index}", name=name, arguments=f'{{"command": "{number}-{index}"}}')
            for index, name in enumerate(self.script[number])
        )
        return ModelReply(message=AssistantMessage(tool_calls=calls), usage=USED, finish="tool_calls")


scripts = st.lists(st.lists(st.sampled_from(["Bash", "Read", "InvokeAgent"]), min_size=1, max_size=3), max_size=3)
deaths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=6)


@settings(max_examples=500, deadline=None)
@given(scripts, deaths, st.lists(st.integers(0, 5), max_size=40))
def test_a_turn_ends_as_it_would_wherever_its_workers_die(
    script: Script, crashes: list[tuple[int, int]], choices: list[int]
) -> None:
    world = World(script, crashes, choices)
    world.run()
    ledger, ids = world.ledger, [f"{n}-{index}" for n, names in enumerate(script) for index in range(len(names))]
    assert ledger.finished is not None
    assert (ledger.finished.outcome, ledger.finished.response) == ("complete", "Done.")
    assert ledger.started == ledger.ended == Counter(ids), "each call is told once, and its end too"
    assert all(count == 1 for count in (world.ran + world.children).values()), "nothing is run twice"
    assert ledger.open == []


@settings(max_examples=300, deadline=None)
@given(scripts, deaths, st.lists(st.integers(0, 5), max_size=40))
def test_the_transcript_is_one_that_a_model_takes_wherever_its_workers_died(
    script: Script, crashes: list[tuple[int, int]], choices: list[int]
) -> None:
    world = World(script, crashes, choices)
    world.run()
    history = world.ledger.history
    replies = [message for message in history if isinstance(message, AssistantMessage)]
    assert len(replies) == world.ledger.iterations == len(script) + 1
    assert [each.call_id for each in history if isinstance(each, ToolResult)] == [
        call.id for reply in replies for call in reply.tool_calls
    ]
    assert Transcript(history).view() == tuple(history), "there is nothing to be mended"


@settings(max_examples=300, deadline=None)
@given(scripts, deaths, st.lists(st.integers(0, 5), max_size=40))
def test_what_was_billed_is_counted_or_named_as_uncertain(
    script: Script, crashes: list[tuple[int, int]], choices: list[int]
) -> None:
    world = World(script, crashes, choices)
    world.run()
    ledger = world.ledger
    assert ledger.usage.api_calls == len(script) + 1
    assert ledger.usage.api_calls <= world.billed.api_calls <= ledger.usage.api_calls + ledger.uncertain
