"""Random histories for the property tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from protocol.content import AssistantMessage, Message, ToolCall, ToolResult, UserMessage

texts = st.text(max_size=60)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """A prompt, a plain reply, or a reply with calls and all their results in call order. Ids repeat over replies."""
    kind = draw(st.sampled_from(["prompt", "reply", "calls"]))
    if kind == "prompt":
        return [UserMessage(text=draw(texts))]
    if kind == "reply":
        return [AssistantMessage(text=draw(texts))]
    ids = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True))
    calls = tuple(ToolCall(id=call_id, name=draw(st.sampled_from(["Read", "Bash"]))) for call_id in ids)
    results = [ToolResult(call_id=c.id, name=c.name, outcome="success", output=draw(texts)) for c in calls]
    return [AssistantMessage(text=draw(texts), tool_calls=calls), *results]


@st.composite
def histories(draw: st.DrawFn, min_exchanges: int = 0, max_exchanges: int = 8) -> list[Message]:
    """A whole history: every call answered, in call order, before the next message of another kind."""
    parts = draw(st.lists(exchanges(), min_size=min_exchanges, max_size=max_exchanges))
    return [message for part in parts for message in part]


def assert_every_call_is_answered(view: Sequence[Message]) -> None:
    """Each reply's calls are followed by exactly one result each, in call order, and no result stands elsewhere."""
    expected: list[str] = []
    for message in view:
        if isinstance(message, ToolResult):
            assert expected, f"a result of no call: {message}"
            assert message.call_id == expected.pop(0)
            continue
        assert not expected, f"{expected} have no result before {message}"
        if isinstance(message, AssistantMessage):
            expected = [call.id for call in message.tool_calls]
    assert not expected, f"{expected} have no result"
