"""The scenario of the scripted model: its language, as structs, and how a file of it is read.

A scenario is a JSON file with a list of rules for each agent. A rule says when it holds (`Conditions`) and what the
model then answers (`ScriptedReply`, `ScriptedError`); the first rule that holds wins. Rules look at the request alone,
so the same scenario gives the same answers in any process, after a restart and after a resume.

Texts may use what the rule's patterns captured: ``{{name}}`` stands for the named group ``name``, or for one of
`BUILT_IN_NAMES`; ``\\{{name}}`` is that text itself. The language is described in ``docs/scripted-model.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeAlias, cast

import msgspec

from protocol.content import Outcome
from protocol.errors import ProtocolError
from protocol.frames import CallPurpose

MAX_SCENARIO_BYTES = 1024 * 1024
"""A scenario travels to each worker in one frame."""

BUILT_IN_NAMES = frozenset({"agent", "prompt", "step"})
"""Names that every template may use; no pattern may capture under one of them."""

ANY_AGENT = "*"
"""The rules under this name are for all agents; an agent's own rules are asked first."""

ErrorKind: TypeAlias = Literal[
    "rate_limit", "server_error", "stream_failed", "network", "context_overflow", "refused", "bad_response"
]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Ordinal: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=3600)]

_PLACEHOLDER = re.compile(r"(\\?)\{\{([A-Za-z_]\w*)\}\}")


def _check_pattern(field: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the pattern in `{field}` is no regular expression: {error}") from None


def _strings(value: object) -> Iterator[str]:
    """All strings in a decoded JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in cast("dict[str, object]", value).values():
            yield from _strings(item)


class ScenarioError(ProtocolError):
    """A scenario that can't be used; the message is one sentence that names the file and the place in it."""


class ScenarioPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all parts of a scenario: an unknown field is a mistake, never ignored."""


class NumberRange(ScenarioPart, frozen=True, kw_only=True):
    """Both bounds belong to the range; one that is left out does not bound."""

    at_least: Ordinal = 1
    at_most: Ordinal | None = None


class ResultCondition(ScenarioPart, frozen=True, kw_only=True):
    """A condition on the results of the last reply's tool calls.

    ``tool`` and ``id`` select results; of those, ``which`` (any, all, none) must have the ``outcome`` and an output in
    which the pattern ``output`` is found. ``any`` and ``all`` do not hold where nothing is selected.
    """

    tool: str | None = None
    id: str | None = None
    outcome: Outcome | None = None
    output: str | None = None
    which: Literal["any", "all", "none"] = "any"

    def __post_init__(self) -> None:
        _check_pattern("output", self.output)


class Conditions(ScenarioPart, frozen=True, kw_only=True):
    """When a rule holds: all that is given must.

    ``prompt`` is a pattern for the prompt of this turn, ``step`` the number of the reply in the turn (the first is 1),
    ``attempt`` how often this one reply has been asked for (2 is the first retry), ``results`` looks at what the calls
    of the last reply came to, ``said`` and ``not_said`` are patterns for all texts of the transcript (prompts, notes,
    replies, outputs), ``tools_offered`` says whether the request offers any tool. Patterns are Python's, and are
    searched for anywhere in a text.
    """

    purpose: CallPurpose = "reply"
    prompt: str | None = None
    step: Ordinal | NumberRange | None = None
    attempt: Ordinal | NumberRange | None = None
    results: tuple[ResultCondition, ...] = ()
    said: str | None = None
    not_said: str | None = None
    tools_offered: bool | None = None

    def __post_init__(self) -> None:
        _check_pattern("prompt", self.prompt)
        _check_pattern("said", self.said)
        _check_pattern("not_said", self.not_said)

    def captures(self) -> list[str]:
        """The names under which the patterns capture; ``not_said`` and a ``none`` find nothing, so capture nothing."""
        patterns = [self.prompt, self.said, *(each.output for each in self.results if each.which != "none")]
        return [name for pattern in patterns if pattern is not None for name in re.compile(pattern).groupindex]


class ScriptedCall(ScenarioPart, frozen=True, kw_only=True):
    """A tool call. ``arguments`` is a JSON object; its strings are templates. No ``id``: one is made up."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str | None = None

    def __post_init__(self) -> None:
        if bytes(self.arguments).lstrip()[:1] != b"{":
            raise ValueError("`arguments` must be an object")


class ScriptedUsage(ScenarioPart, frozen=True, kw_only=True):
    """Token counts that the model claims; of what is left out the first three follow from the texts, the rest are 0."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    thinking_tokens: Count | None = None
    cache_read_tokens: Count = 0
    cache_creation_tokens: Count = 0


class ScriptedReply(ScenarioPart, frozen=True, kw_only=True):
    """What the model answers. ``text`` and ``thinking`` are templates; with nothing in it the reply is an empty one.

    ``delay`` is the time before the reply begins, ``piece_delay`` that between two streamed pieces, in seconds.
    ``finish`` is by default what fits: ``tool_calls`` with calls, else ``stop``.
    """

    text: str = ""
    thinking: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    usage: ScriptedUsage = ScriptedUsage()
    finish: Literal["stop", "tool_calls", "length", "content_filter"] | None = None
    delay: Seconds = 0.0
    piece_delay: Seconds = 0.0

    def __post_init__(self) -> None:
        ids = [call.id for call in self.tool_calls if call.id is not None]
        if len(ids) != len(set(ids)):
            raise ValueError("two tool calls of one reply have the same id")


class ScriptedError(ScenarioPart, frozen=True, kw_only=True):
    """A failure of the model's server.

    ``message`` and ``after_text``, which is streamed before the failure, are templates. ``retry_after`` is the time in
    seconds that the server asks for, ``status`` the HTTP status of a ``refused``, ``delay`` as in `ScriptedReply`.
    """

    kind: ErrorKind
    message: str = ""
    retry_after: Seconds | None = None
    status: Count = 400
    after_text: str = ""
    delay: Seconds = 0.0


class Rule(ScenarioPart, frozen=True, kw_only=True):
    """One rule: ``when`` it holds, the model answers with ``reply`` or fails with ``error``. ``name`` is for people."""

    name: str = ""
    when: Conditions = Conditions()
    reply: ScriptedReply | None = None
    error: ScriptedError | None = None

    def __post_init__(self) -> None:
        if (self.reply is None) == (self.error is None):
            raise ValueError("a rule needs either `reply` or `error`")
        captured = self.when.captures()
        for name in captured:
            if captured.count(name) > 1 or name in BUILT_IN_NAMES:
                raise ValueError(f"the name of the group `{name}` is already taken")
        for text in self.templates():
            for name in placeholders(text):
                if name not in BUILT_IN_NAMES and name not in captured:
                    raise ValueError(f"`{{{{{name}}}}}` is used, but no pattern of the rule captures it")

    def templates(self) -> Iterator[str]:
        """All texts of the rule that may hold placeholders."""
        if self.reply is not None:
            yield from (self.reply.text, self.reply.thinking)
            for call in self.reply.tool_calls:
                yield from _strings(msgspec.json.decode(call.arguments))
        if self.error is not None:
            yield from (self.error.message, self.error.after_text)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A whole scenario: the rules for each agent, by its name or `ANY_AGENT`."""

    agents: dict[str, tuple[Rule, ...]]
    description: str = ""

    def rules_for(self, agent: str) -> tuple[Rule, ...]:
        """The rules to ask for ``agent``, in order: its own, then those for any agent."""
        own = self.agents.get(agent, ()) if agent != ANY_AGENT else ()
        return own + self.agents.get(ANY_AGENT, ())


class _ScenarioFile(ScenarioPart, frozen=True, kw_only=True):
    """A scenario whose rules are not read yet, so that a fault in one is reported with its number."""

    agents: dict[str, tuple[msgspec.Raw, ...]]
    version: Literal[1] = 1
    description: str = ""


_file_decoder = msgspec.json.Decoder(_ScenarioFile)
_rule_decoder = msgspec.json.Decoder(Rule)


def load_scenario(text: str | bytes, source: str) -> Scenario:
    """Read the text of a scenario file. ``source`` is what errors call it, such as its path.

    Raises `ScenarioError` for text that is no scenario: it names the line and column of a fault in the JSON, and the
    agent, the number of the rule and the field for all else.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_SCENARIO_BYTES:
        raise ScenarioError(f"{source}: a scenario may have {MAX_SCENARIO_BYTES} bytes, this one has {len(data)}")
    try:
        file = _file_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(f"{source}: {_reason(error, data)}") from None
    agents = {
        agent: tuple(_load_rule(raw, f"{source}: rule {number} of agent {agent}") for number, raw in enumerate(raws, 1))
        for agent, raws in file.agents.items()
    }
    return Scenario(agents=agents, description=file.description)


def placeholders(template: str) -> list[str]:
    """The names that ``template`` asks for, in order."""
    return [name for escape, name in _PLACEHOLDER.findall(template) if not escape]


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """``template`` with its placeholders replaced; a name that ``values`` lacks is left out."""

    def value(found: re.Match[str]) -> str:
        escape, name = found.groups()
        return found[0][1:] if escape else values.get(name, "")

    return _PLACEHOLDER.sub(value, template)


def _load_rule(raw: msgspec.Raw, place: str) -> Rule:
    try:
        return _rule_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(f"{place}: {_reason(error, b'')}") from None


def _reason(error: Exception, data: bytes) -> str:
    """The decoder's words, with line and column in place of its byte position."""
    found = re.search(r" \(byte (\d+)\)", str(error))
    if found is None:
        return str(error) or "nested too deeply"
    before = data[: int(found[1])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"{str(error)[: found.start()]} at line {line}, column {column}"
