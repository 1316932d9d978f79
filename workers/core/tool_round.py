"""The calls of one reply: which of them run, and their results in call order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.agent_spec import Trust
from protocol.content import Outcome, ToolCall, ToolResult
from protocol.frames import ApprovalRequest, ToolCallOpened
from protocol.records import LoopGuard as LoopGuardRecord
from protocol.records import ToolCallResult
from protocol.tool_names import SHELL_TOOL, ToolEffect
from workers.core.effects import Effect, RunTool, Send, TakeUp
from workers.core.loop_guard import LoopGuard
from workers.core.permission import command_denial, denial

_STOPPED = "not run: this same call was made {count} times in a row; the turn ends here"
_NOTE = "\n\n[Note: this is the {count}th time in a row that you make this same call. Try something else.]"


class ToolRound:
    """Takes the calls of a reply in call order, then each result as it comes.

    ``effects`` are the tools the agent may use and what each may do to the world; ``project_root`` is the folder that
    commands are expected to stay in, absolute.
    """

    def __init__(
        self,
        calls: Sequence[ToolCall],
        guard: LoopGuard,
        trust: Trust,
        effects: Mapping[str, ToolEffect],
        project_root: str = "/",
    ) -> None:
        self._calls = calls
        self._guard = guard
        self._trust: Trust = trust
        self._effects = effects
        self._project_root = project_root
        self._results: dict[int, ToolResult] = {}
        self._noted: dict[int, int] = {}
        self._asked: dict[str, int] = {}
        self.stopped_by = ""

    def begin(self) -> list[Effect]:
        """Open every call, before any of them runs; run those that may run, ask for those that somebody may allow.

        The others are answered at once.
        """
        opened: list[Effect] = []
        ended: list[Effect] = []
        for index, call in enumerate(self._calls):
            opened += self._watch(index, call)
            opened.append(Send(ToolCallOpened(call=call)))
            refusal = self._refusal(call)
            if refusal is None:
                ended.append(RunTool(index, call))
            elif refusal[0] == "denied" and self._trust != "plan":
                self._asked[call.id] = index
                ended.append(Send(ApprovalRequest(call_id=call.id, denial=refusal[1])))
            else:
                ended += self.done(index, refusal[0], refusal[1], 0)
        if self.stopped_by:
            # Nothing of this reply runs: the calls before the one too many were already made often enough.
            self._asked.clear()
            ended = [effect for effect in ended if _is_result(effect)]
            for index in range(len(self._calls)):
                if index not in self._results:
                    ended += self.done(index, "denied", _STOPPED.format(count=self._guard.count), 0)
        return opened + ended

    def resume(self, results: Sequence[ToolResult], delegations: Mapping[str, int]) -> list[Effect]:
        """Go on with a round that an earlier worker began: ``results`` are known, the others are sub-agents' calls.

        The guard has been told of these calls already.
        """
        known = {result.call_id: result for result in results}
        effects: list[Effect] = []
        for index, call in enumerate(self._calls):
            if call.id in known:
                self._results[index] = known[call.id]
            else:
                effects.append(TakeUp(index, call, delegations[call.id]))
        return effects

    def answered(self, call_id: str, denial: str | None) -> list[Effect]:
        """Somebody said whether a call may run: it does, or ``denial`` is its result. Nothing for one not asked for."""
        index = self._asked.pop(call_id, None)
        if index is None:
            return []
        return [RunTool(index, self._calls[index])] if denial is None else self.done(index, "denied", denial, 0)

    def done(self, index: int, outcome: Outcome, output: str, elapsed_ms: int) -> list[Effect]:
        """The result of call ``index`` came, after ``elapsed_ms``."""
        call = self._calls[index]
        if index in self._noted:
            output += _NOTE.format(count=self._noted[index])
        self._results[index] = ToolResult(call_id=call.id, name=call.name, outcome=outcome, output=output)
        record = ToolCallResult(id=call.id, name=call.name, outcome=outcome, output=output, elapsed_ms=elapsed_ms)
        return [Send(record)]

    @property
    def is_over(self) -> bool:
        """Every call has its result."""
        return len(self._results) == len(self._calls)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results, in call order whatever the order they came in."""
        return tuple(self._results[index] for index in sorted(self._results))

    def _watch(self, index: int, call: ToolCall) -> list[Effect]:
        if self.stopped_by:
            return []
        verdict = self._guard.observe(call)
        if verdict == "run":
            return []
        detail = f"{call.name} was called {self._guard.count} times in a row with the same arguments"
        if verdict == "stop":
            self.stopped_by = detail
        else:
            self._noted[index] = self._guard.count
        return [Send(LoopGuardRecord(action=verdict, detail=detail))]

    def _refusal(self, call: ToolCall) -> tuple[Outcome, str] | None:
        if call.fault:
            return "error", f"the call was not run: {call.fault}"
        if call.name not in self._effects:
            names = ", ".join(sorted(self._effects)) or "none"
            return "error", f"there is no tool {call.name!r} here; the tools are: {names}"
        reason = denial(self._trust, self._effects[call.name])
        if reason is None and call.name == SHELL_TOOL:
            reason = command_denial(self._trust, call, self._project_root)
        return None if reason is None else ("denied", reason)


def _is_result(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, ToolCallResult)
