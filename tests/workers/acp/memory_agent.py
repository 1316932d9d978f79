"""An agent that lives in the test: a sandbox without processes, whose program is a function of the test's."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import trio
import trio.testing
from trio.abc import ReceiveStream, SendStream

from workers.acp import AcpControl, AcpProcessSpec, AcpRunRequest, AcpRunResult, run_acp_turn

Message: TypeAlias = dict[str, object]
SESSION = "memory-session"


class MemoryAgent:
    """The agent's side of the streams, and the process as the runner sees it (a `StdioProcess`).

    ``messages`` are those that came from the runner, ``sent`` those that went to it.
    """

    def __init__(self, *, lockstep: bool = False) -> None:
        pair = trio.testing.lockstep_stream_one_way_pair if lockstep else trio.testing.memory_stream_one_way_pair
        self.stdin: SendStream
        self.stdout: ReceiveStream
        self.stderr: ReceiveStream | None
        self.stdin, self._input = pair()
        self._output, self.stdout = pair()
        self._errors, self.stderr = trio.testing.memory_stream_one_way_pair()
        self._received = bytearray()
        self._exited = trio.Event()
        self._exit_code = 0
        self.messages: list[Message] = []
        self.sent: list[Message] = []
        self.signals: list[str] = []
        self.ends_on_signal = True

    # -- the runner's side --------------------------------------------------------------------------------------------

    async def wait(self) -> int:
        await self._exited.wait()
        return self._exit_code

    def terminate(self) -> None:
        self.signals.append("terminate")
        if self.ends_on_signal:
            self.exit(-15)

    def kill(self) -> None:
        self.signals.append("kill")
        if self.ends_on_signal:
            self.exit(-9)

    # -- the agent's side ---------------------------------------------------------------------------------------------

    def exit(self, code: int = 0) -> None:
        """Be gone, but leave the output open, as a child would that outlives its parent. Only the first exit counts."""
        if not self._exited.is_set():
            self._exit_code = code
            self._exited.set()
        self._errors.close()

    async def close_output(self) -> None:
        await self._output.aclose()

    async def close_input(self) -> None:
        await self._input.aclose()

    async def leave(self, code: int = 0) -> None:
        """Exit as a process does: with its streams."""
        await self.close_output()
        self.exit(code)

    async def write(self, data: bytes) -> None:
        """Write to the output; once nobody reads it any more the agent waits for ever."""
        try:
            await self._output.send_all(data)
        except trio.BrokenResourceError:
            await trio.sleep_forever()

    async def send(self, message: Message) -> None:
        self.sent.append({"jsonrpc": "2.0", **message})
        await self.write(json.dumps(self.sent[-1]).encode() + b"\n")

    async def receive(self) -> Message:
        """The next message from the runner; at the end of the input the agent waits for ever."""
        while b"\n" not in self._received:
            data = await self._input.receive_some(65_536)
            if not data:
                await trio.sleep_forever()
            self._received += data
        line, _, rest = self._received.partition(b"\n")
        self._received = bytearray(rest)
        message = cast(Message, json.loads(line))
        self.messages.append(message)
        return message

    async def receive_request(self, method: str) -> Message:
        message = await self.receive()
        assert message.get("method") == method, message
        return message

    async def answer(self, request: Message, result: object) -> None:
        await self.send({"id": request["id"], "result": result})

    async def open_session(self) -> None:
        await self.answer(await self.receive_request("initialize"), {"protocolVersion": 1, "agentCapabilities": {}})
        await self.answer(await self.receive_request("session/new"), {"sessionId": SESSION})

    async def receive_prompt(self) -> Message:
        return await self.receive_request("session/prompt")

    async def open_prompt(self) -> Message:
        await self.open_session()
        return await self.receive_prompt()

    async def update(self, update: Message, session: str = SESSION) -> None:
        await self.send({"method": "session/update", "params": {"sessionId": session, "update": update}})

    async def say(self, text: str, session: str = SESSION) -> None:
        await self.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}, session)

    async def end_prompt(self, prompt: Message, stop_reason: object = "end_turn") -> None:
        await self.answer(prompt, {"stopReason": stop_reason})

    @property
    def methods(self) -> list[object]:
        """What the runner called, in order."""
        return [message["method"] for message in self.messages if "method" in message]


Script: TypeAlias = Callable[[MemoryAgent], Awaitable[None]]


class MemorySandbox:
    """Runs ``script`` as the agent: in the nursery of the test, but deaf to its cancellation, until `stop`."""

    def __init__(self, agent: MemoryAgent, script: Script, nursery: trio.Nursery) -> None:
        self._agent = agent
        self._script = script
        self._nursery = nursery
        self._scope = trio.CancelScope(shield=True)
        self.stop = self._scope.cancel

    async def open_stdio(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> MemoryAgent:
        assert (list(argv), cwd, "PATH" in env) == (["memory-agent"], Path("/somewhere"), True)
        self._nursery.start_soon(self._run)
        return self._agent

    async def _run(self) -> None:
        with self._scope:
            await self._script(self._agent)


async def run_with(
    script: Script,
    *,
    agent: MemoryAgent | None = None,
    timeout: float | None = None,
    cancel: trio.Event | None = None,
    on_activity: Callable[[], None] | None = None,
    control: AcpControl | None = None,
    prompt: str = "hello",
) -> AcpRunResult:
    """Run a turn against ``script``; its task is cancelled with the end of the turn. Errors come out bare."""
    agent = agent or MemoryAgent()
    outcome: AcpRunResult | BaseException
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            sandbox = MemorySandbox(agent, script, nursery)
            request = AcpRunRequest(
                command=AcpProcessSpec.parse("memory-agent"),
                prompt=prompt,
                cwd=Path("/somewhere"),
                env={},
                sandbox=sandbox,
                timeout=timeout,
                cancel=cancel,
                on_activity=on_activity,
                control=control,
            )
            try:
                outcome = await run_acp_turn(request)
            except trio.Cancelled:
                raise
            except BaseException as error:
                outcome = error
            finally:
                sandbox.stop()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
