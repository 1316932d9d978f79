"""The scripted model: a deterministic one that follows a scenario file instead of a server.

For demos, for tests, and to try a set-up without a key. Its replies depend on the request alone (see
`workers.providers.scenario_match`), so it needs no memory: a worker that was restarted, or a session that was resumed,
goes on where it was. Only the number of an attempt is counted here, as only the process that resends a call knows it.
"""

from __future__ import annotations

import trio

from protocol.agent_spec import ModelSettings
from protocol.scenario import Scenario, ScriptedError, ScriptedReply, fill_template, load_scenario
from workers.providers.provider import DeltaSink, ModelReply, ModelRequest, Provider, ProviderError
from workers.providers.scenario_match import find_rule, read_situation
from workers.providers.scripted_reply import build_error, build_reply, last_resort, split_pieces


class ScriptedModel:
    """Answers from ``scenario``. A request for which it has no rule is an error that says so: nothing is guessed."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._last_request: ModelRequest | None = None
        self._attempt = 0

    async def reply(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        """See `Provider.reply`. Raises the error that the rule which holds asks for, and `Refused` where none holds."""
        situation = read_situation(request, self._count_attempt(request))
        match = find_rule(self._scenario, situation) or last_resort(situation)
        if match.rule.error is not None:
            raise await _fail(match.rule.error, match.values, request.streaming, deltas)
        script = match.rule.reply or ScriptedReply()
        reply = build_reply(script, match.values, situation)
        await trio.sleep(script.delay)
        await _send(reply, request.streaming, deltas, script.piece_delay)
        return reply

    async def aclose(self) -> None:
        """Nothing is open."""

    def _count_attempt(self, request: ModelRequest) -> int:
        # A grant may narrow `max_tokens` of one attempt: it is the same call all the same.
        last = self._last_request
        is_again = last is not None and (last.purpose, last.messages) == (request.purpose, request.messages)
        self._attempt = self._attempt + 1 if is_again else 1
        self._last_request = request
        return self._attempt


async def _send(reply: ModelReply, is_streaming: bool, deltas: DeltaSink, piece_delay: float) -> None:
    pieces = [(deltas.thinking, piece) for piece in split_pieces(reply.message.reasoning, is_streaming)]
    pieces += [(deltas.text, piece) for piece in split_pieces(reply.message.text, is_streaming)]
    for number, (send, piece) in enumerate(pieces):
        # A sleep of 0 is a checkpoint: a long text can be cancelled, and goes out while it comes.
        await trio.sleep(piece_delay if number else 0.0)
        send(piece)


async def _fail(script: ScriptedError, values: dict[str, str], is_streaming: bool, deltas: DeltaSink) -> ProviderError:
    await trio.sleep(script.delay)
    for piece in split_pieces(fill_template(script.after_text, values), is_streaming):
        deltas.text(piece)
    return build_error(script, values)


def make(settings: ModelSettings) -> Provider:
    """The scripted model for the scenario in ``settings``; raises `protocol.scenario.ScenarioError`."""
    return ScriptedModel(load_scenario(settings.scenario, "the scenario"))
