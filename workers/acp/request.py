"""What a turn of an external agent is asked for with, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import trio

from workers.acp.command import AcpProcessSpec
from workers.acp.control import AcpControl
from workers.sandbox.sandbox import Sandbox


class AcpRunRequest(msgspec.Struct, frozen=True):
    """A turn to be run.

    ``timeout`` is in seconds, from the start of the process to the end of the last prompt. ``env`` is set on top of
    what the agent inherits and of what ``command`` sets. The turn is cancelled once ``cancel`` is set. ``on_activity``
    is called on each update that comes while a prompt is open and on the answer to the prompt, before it is processed.
    """

    command: AcpProcessSpec
    prompt: str
    cwd: Path
    env: Mapping[str, str]
    sandbox: Sandbox
    timeout: float | None = None
    cancel: trio.Event | None = None
    on_activity: Callable[[], None] | None = None
    control: AcpControl | None = None


class AcpRunResult(msgspec.Struct, frozen=True):
    """How a turn went that succeeded.

    ``text`` is what the agent said in all of its prompts, ``stop_reason`` that of the last (``end_turn`` or
    ``refusal``), ``stderr`` as in `ExecOutputTail`, ``duration`` in seconds, the end of the process included.
    """

    text: str
    stop_reason: str
    stderr: str
    duration: float
