"""The scripted model: the same request always gets the same reply, and a rule looks at the request alone."""

from __future__ import annotations

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.agent_spec import ModelSettings
from protocol.content import AssistantMessage, Message, Outcome, Summary, ToolCall, ToolResult, UserMessage
from protocol.scenario import ScenarioError
from workers.providers.provider import (
    BadResponse,
    ContextOverflow,
    ModelReply,
    ModelRequest,
    NetworkFailed,
    Provider,
    ProviderError,
    RateLimited,
    Refused,
    Retryable,
    ServerFailed,
    StreamFailed,
    ToolSchema,
)
from workers.providers.scripted import make
from workers.providers.scripted_reply import split_pieces

READ = ToolSchema(name="Read", description="Reads.", parameters="{}")


class Pieces:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []

    def text(self, piece: str) -> None:
        self.texts.append(piece)

    def thinking(self, piece: str) -> None:
        self.thoughts.append(piece)


def model(*rules: object, agent: str = "main") -> Provider:
    return model_of({agent: rules})


def model_of(agents: dict[str, object]) -> Provider:
    scenario = json.dumps({"agents": agents})
    return make(ModelSettings(provider="scripted", adapter="scripted", model="scripted", scenario=scenario))


def request(
    *messages: Message,
    agent: str = "main",
    streaming: bool = False,
    max_tokens: int | None = None,
    is_summary: bool = False,
    tools: tuple[ToolSchema, ...] = (READ,),
) -> ModelRequest:
    return ModelRequest(
        agent=agent,
        system_prompt="You help.",
        messages=messages or (UserMessage(text="hi"),),
        tools=tools,
        streaming=streaming,
        max_tokens=max_tokens,
        purpose="summary" if is_summary else "reply",
    )


def called(*names: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(id=f"id-{name}", name=name) for name in names))


def result(name: str, output: str, outcome: Outcome = "success") -> ToolResult:
    return ToolResult(call_id=f"id-{name}", name=name, outcome=outcome, output=output)


async def ask(provider: Provider, asked: ModelRequest) -> ModelReply:
    return await provider.reply(asked, Pieces())


async def text_of(provider: Provider, *messages: Message) -> str:
    return (await ask(provider, request(*messages))).message.text


def say(text: str, **when: object) -> dict[str, object]:
    return {"when": when, "reply": {"text": text}}


# -- which rule -------------------------------------------------------------------------------------------------------


async def test_the_first_rule_that_holds_wins() -> None:
    scripted = model(say("no", prompt="bye"), say("first", prompt="h."), say("second"))
    assert await text_of(scripted, UserMessage(text="oh hi")) == "first"
    assert await text_of(scripted, UserMessage(text="x")) == "second"


async def test_each_agent_has_rules_of_its_own() -> None:
    scripted = model_of({"main": [say("I am main")], "*": [say("I am {{agent}}")]})
    assert (await ask(scripted, request(agent="main"))).message.text == "I am main"
    assert (await ask(scripted, request(agent="explore"))).message.text == "I am explore"


async def test_a_request_without_a_rule_is_an_error_that_names_the_place() -> None:
    scripted = model(say("one", step=1))
    asked = request(UserMessage(text="hi"), called("Bash"), result("Bash", "oops", "error"))
    with pytest.raises(Refused, match="no rule for agent main, step 2, after Bash error") as caught:
        await ask(scripted, asked)
    assert not isinstance(caught.value, Retryable)
    with pytest.raises(Refused, match=r"no rule for agent explore, step 1$"):
        await ask(scripted, request(agent="explore"))


async def test_steps_count_the_replies_of_this_turn_only() -> None:
    scripted = model(say("one", step=1), say("two", step=2), say("more", step={"at_least": 3, "at_most": 4}))
    first_turn: list[Message] = [UserMessage(text="a"), called("Read"), result("Read", "x")]
    assert await text_of(scripted, *first_turn) == "two"
    second_turn = [*first_turn, AssistantMessage(text="two"), UserMessage(text="b")]
    assert await text_of(scripted, *second_turn) == "one"
    more: list[Message] = [called("Read"), result("Read", "x")] * 3
    assert await text_of(scripted, *second_turn, *more) == "more"
    with pytest.raises(Refused):
        await text_of(scripted, *second_turn, *more, *more)


async def test_a_prompt_after_a_turn_that_was_cut_off_begins_a_new_turn() -> None:
    scripted = model(say("again: {{what}}", step=1, prompt="(?P<what>.+)"))
    cut_off = (UserMessage(text="a"), called("Bash"), result("Bash", "", "cancelled"))
    assert await text_of(scripted, *cut_off, UserMessage(text="b")) == "again: b"
    failed = (UserMessage(text="a"), called("Bash"), result("Bash", "ok"))
    assert await text_of(scripted, *failed, UserMessage(text="c")) == "again: c"
    assert await text_of(scripted, UserMessage(text="never answered"), UserMessage(text="d")) == "again: d"


async def test_the_note_that_takes_an_agents_tools_away_does_not_begin_a_turn() -> None:
    scripted = model(say("I must stop", step=2, prompt="^look$", tools_offered=False), agent="explore")
    messages = (UserMessage(text="look"), called("Read"), result("Read", "x"), UserMessage(text="Answer now."))
    reply = await ask(scripted, request(*messages, agent="explore", tools=()))
    assert reply.message.text == "I must stop"


async def test_after_a_compaction_the_summary_stands_for_the_prompt() -> None:
    scripted = model(say("on with {{it}}", step=2, prompt="mend (?P<it>the parser)"))
    view = (Summary(text="The task: mend the parser.", replaces=9), called("Read"), result("Read", "x"))
    assert await text_of(scripted, *view) == "on with the parser"


async def test_results_are_those_of_the_last_reply_only() -> None:
    scripted = model(say("old", results=[{"output": "needle"}]), say("none"))
    messages = (UserMessage(text="a"), called("Read"), result("Read", "needle"))
    assert await text_of(scripted, *messages) == "old"
    assert await text_of(scripted, *messages, called("Bash"), result("Bash", "hay")) == "none"
    assert await text_of(scripted, *messages, AssistantMessage(text="ok"), UserMessage(text="b")) == "none"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"tool": "Bash"}, True),
        ({"tool": "Edit"}, False),
        ({"id": "id-Read"}, True),
        ({"id": "id-Read", "tool": "Bash"}, False),
        ({"outcome": "error"}, True),
        ({"outcome": "denied"}, False),
        ({"tool": "Read", "outcome": "error"}, False),
        ({"output": "fail"}, True),
        ({"which": "all", "outcome": "success"}, False),
        ({"which": "all", "tool": "Read", "outcome": "success"}, True),
        ({"which": "all", "tool": "Edit"}, False),
        ({"which": "none", "outcome": "denied"}, True),
        ({"which": "none", "outcome": "error"}, False),
        ({"which": "none", "tool": "Edit"}, True),
    ],
)
async def test_a_result_is_picked_by_tool_and_id_and_judged_by_outcome_and_output(
    condition: object, holds: bool
) -> None:
    scripted = model(say("yes", results=[condition]), say("no"))
    messages = (UserMessage(text="a"), called("Read", "Bash"), result("Read", "fine"), result("Bash", "fail", "error"))
    assert await text_of(scripted, *messages) == ("yes" if holds else "no")


async def test_said_looks_at_prompts_replies_thoughts_and_outputs() -> None:
    scripted = model(say("found {{x}}", said="key=(?P<x>\\w+)"), say("clean", not_said="secret"), say("secret"))
    thought = AssistantMessage(text="hm", reasoning="key=c")
    for message in (UserMessage(text="key=a"), AssistantMessage(text="key=b"), thought, result("Read", "key=d")):
        text = await text_of(scripted, UserMessage(text="hi"), message, UserMessage(text="go on"))
        assert text in ("found a", "found b", "found c", "found d")
    assert await text_of(scripted, UserMessage(text="hi")) == "clean"
    assert await text_of(scripted, UserMessage(text="a secret")) == "secret"


# -- what it answers --------------------------------------------------------------------------------------------------


async def test_captured_groups_fill_texts_and_the_strings_of_arguments() -> None:
    rule = {
        "when": {"prompt": "read (?P<file>\\S+)(?P<rest>!)?", "step": 1},
        "reply": {
            "text": "{{step}}: {{file}}{{rest}}",
            "thinking": "{{prompt}}?",
            "tool_calls": [{"name": "Edit", "arguments": {"{{file}}": 1, "list": ["{{file}}", {"x": "<{{file}}>"}]}}],
        },
    }
    message = (await ask(model(rule), request(UserMessage(text='read a"b\\c')))).message
    assert message.text == '1: a"b\\c'
    assert message.reasoning == 'read a"b\\c?'
    arguments = json.loads(message.tool_calls[0].arguments)
    assert arguments == {"{{file}}": 1, "list": ['a"b\\c', {"x": '<a"b\\c>'}]}


async def test_calls_keep_their_ids_and_get_steady_unique_ones_where_they_have_none() -> None:
    calls = [{"name": "Read"}, {"name": "Read", "id": "mine"}, {"name": "Bash", "arguments": {"command": "true"}}]
    asked = request(UserMessage(text="go"))
    first = (await ask(model({"reply": {"tool_calls": calls}}), asked)).message.tool_calls
    again = (await ask(model({"reply": {"tool_calls": calls}}), asked)).message.tool_calls
    assert first == again
    assert first[1].id == "mine"
    assert len({call.id for call in first}) == 3
    other = await ask(model({"reply": {"tool_calls": calls}}), request(UserMessage(text="stay")))
    assert other.message.tool_calls[0].id != first[0].id


async def test_a_streamed_reply_comes_word_by_word_and_another_in_one_piece() -> None:
    scripted = model({"reply": {"text": "All is  well.\n", "thinking": "Is it?"}})
    streamed, whole = Pieces(), Pieces()
    await scripted.reply(request(streaming=True), streamed)
    await scripted.reply(request(streaming=False), whole)
    assert (streamed.thoughts, streamed.texts) == (["Is ", "it?"], ["All ", "is  ", "well.\n"])
    assert (whole.thoughts, whole.texts) == (["Is it?"], ["All is  well.\n"])


@given(st.text(), st.booleans())
def test_the_pieces_of_a_text_add_up_to_it(text: str, is_streaming: bool) -> None:
    pieces = split_pieces(text, is_streaming)
    assert "".join(pieces) == text
    assert "" not in pieces


async def test_a_reply_waits_as_long_as_its_rule_says(autojump_clock: MockClock) -> None:
    scripted = model({"reply": {"text": "a b c", "delay": 30, "piece_delay": 2}})
    began = trio.current_time()
    await ask(scripted, request(streaming=True))
    assert trio.current_time() - began == pytest.approx(34)


async def test_a_wait_can_be_cancelled(autojump_clock: MockClock) -> None:
    pieces = Pieces()
    with trio.move_on_after(5) as scope:
        await model({"reply": {"text": "late", "delay": 3600}}).reply(request(), pieces)
    assert scope.cancelled_caught
    assert pieces.texts == []


async def test_usage_follows_from_the_texts_or_from_the_rule() -> None:
    usage = (await ask(model(say("12345678")), request(UserMessage(text="1234"), tools=()))).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.api_calls) == (3 + 1, 2, 1)
    claimed = {"prompt_tokens": 100, "completion_tokens": 7, "cache_read_tokens": 5, "thinking_tokens": 2}
    usage = (await ask(model({"reply": {"text": "x", "usage": claimed}}), request())).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cache_read_tokens) == (100, 7, 5)
    assert (usage.cache_creation_tokens, usage.thinking_tokens, usage.api_calls) == (0, 2, 1)


async def test_the_longer_the_transcript_the_more_tokens_it_has() -> None:
    short = (UserMessage(text="a"),)
    longer = (*short, called("Read"), result("Read", "x" * 400), Summary(text="y" * 40, replaces=1))
    first, second = [(await ask(model(say("ok")), request(*messages))).usage for messages in (short, longer)]
    assert second.prompt_tokens >= first.prompt_tokens + 110


@pytest.mark.parametrize("max_tokens", range(1, 40))
async def test_a_reply_never_has_more_tokens_than_the_request_allows(max_tokens: int) -> None:
    calls = [{"name": "Read", "arguments": {"file_path": "a.py"}}] * 2
    script = {"text": "Let me see what there is.", "thinking": "Where to begin?", "tool_calls": calls}
    reply = await ask(model({"reply": script}), request(max_tokens=max_tokens))
    assert reply.usage.completion_tokens <= max_tokens
    is_whole = reply.message.text == script["text"] and len(reply.message.tool_calls) == 2
    assert reply.finish == ("tool_calls" if is_whole else "length")


async def test_the_finish_reason_fits_the_reply_unless_the_rule_names_one() -> None:
    assert (await ask(model(say("x")), request())).finish == "stop"
    assert (await ask(model({"reply": {"tool_calls": [{"name": "Read"}]}}), request())).finish == "tool_calls"
    assert (await ask(model({"reply": {"finish": "content_filter"}}), request())).finish == "content_filter"


# -- errors, resends, summaries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rate_limit", RateLimited),
        ("server_error", ServerFailed),
        ("stream_failed", StreamFailed),
        ("network", NetworkFailed),
        ("context_overflow", ContextOverflow),
        ("refused", Refused),
        ("bad_response", BadResponse),
    ],
)
async def test_each_kind_of_error_can_be_scripted(kind: str, expected: type[ProviderError]) -> None:
    scripted = model({"when": {"prompt": "(?P<all>.*)"}, "error": {"kind": kind, "message": "no {{all}}"}})
    with pytest.raises(ProviderError, match=r"^the scripted model: no hi$") as caught:
        await ask(scripted, request())
    assert type(caught.value) is expected


async def test_an_error_carries_its_status_and_its_wait() -> None:
    with pytest.raises(RateLimited) as limited:
        await ask(model({"error": {"kind": "rate_limit", "retry_after": 1.5}}), request())
    assert limited.value.retry_after == 1.5
    with pytest.raises(Refused) as refused:
        await ask(model({"error": {"kind": "refused", "status": 401}}), request())
    assert refused.value.status == 401


async def test_an_error_can_come_in_the_middle_of_a_stream() -> None:
    pieces = Pieces()
    scripted = model({"error": {"kind": "stream_failed", "after_text": "half a"}})
    with pytest.raises(StreamFailed):
        await scripted.reply(request(streaming=True), pieces)
    assert pieces.texts == ["half ", "a"]


async def test_a_rule_for_the_first_attempts_gives_way_to_the_next_rule() -> None:
    scripted = model({"when": {"attempt": {"at_most": 2}}, "error": {"kind": "server_error"}}, say("at last"))
    for _ in range(2):
        with pytest.raises(ServerFailed):
            await ask(scripted, request())
    assert (await ask(scripted, request(max_tokens=50))).message.text == "at last"
    with pytest.raises(ServerFailed):
        await text_of(scripted, UserMessage(text="hi"), AssistantMessage(text="at last"), UserMessage(text="hi"))


async def test_a_summary_call_gets_a_summary_unless_a_rule_gives_another() -> None:
    asked = request(UserMessage(text="sum up: mend the parser"), is_summary=True, tools=())
    plain = await ask(model(say("a reply")), asked)
    assert plain.message.text == "<summary>A scripted summary of 23 characters of history.</summary>"
    scripted = model(say("<summary>{{task}}</summary>", purpose="summary", prompt="(?P<task>mend.*)"))
    assert (await ask(scripted, asked)).message.text == "<summary>mend the parser</summary>"
    with pytest.raises(Refused):
        await ask(scripted, request(UserMessage(text="mend it")))


def test_settings_without_a_scenario_are_refused() -> None:
    with pytest.raises(ScenarioError):
        make(ModelSettings(provider="scripted", adapter="scripted", model="scripted"))


# -- no memory --------------------------------------------------------------------------------------------------------

_messages = st.lists(
    st.one_of(
        st.builds(UserMessage, text=st.sampled_from(["a", "b"])),
        st.just(called("Read")),
        st.builds(result, st.just("Read"), st.sampled_from(["x", "y"])),
        st.builds(Summary, text=st.just("a"), replaces=st.just(2)),
    ),
    max_size=6,
)


@given(st.lists(_messages, min_size=1, max_size=4))
def test_a_model_that_answered_before_answers_like_a_fresh_one(transcripts: list[list[Message]]) -> None:
    rules = [
        say("{{p}} {{o}} {{step}}", prompt="(?P<p>a)", results=[{"output": "(?P<o>.)"}]),
        {"when": {"step": {"at_most": 2}}, "reply": {"tool_calls": [{"name": "Read"}]}},
        say("else"),
    ]

    async def answers(providers: list[Provider]) -> list[ModelReply]:
        return [
            await ask(provider, request(*messages)) for provider, messages in zip(providers, transcripts, strict=True)
        ]

    one = model(*rules)
    used = trio.run(answers, [one] * len(transcripts))
    fresh = trio.run(answers, [model(*rules) for _ in transcripts])
    assert used == fresh
