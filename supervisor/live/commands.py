"""The commands of a second shell: ``corral ps``, ``corral tail`` and ``corral kill``.

Exit codes: 0 done, 2 wrong usage or ambiguous words, 3 no such run or agent, 5 the run does not answer or went away,
130 interrupted, 141 standard output closed.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NoReturn

import msgspec

from supervisor import exit_codes
from supervisor.errors import WrongUsage
from supervisor.live.choice import choose_run
from supervisor.live.connection import ANSWER_SECONDS, LiveConnection
from supervisor.live.errors import ConnectionLost, NotFound
from supervisor.live.folder import LiveSocket, live_folder, live_sockets
from supervisor.live.messages import Kill, Killed, Ps, Shown, Tail, Tailing
from supervisor.live.snapshot import RunSnapshot
from supervisor.terminal_text import printable

RUN_END_SECONDS = 20.0
"""How long ``corral kill`` waits for the run's orderly end, which takes 10 s at most."""
AGENT_END_SECONDS = 15.0


def ps(arguments: list[str]) -> int:
    """``corral ps [--json]``: all live runs of this user, as trees or as JSON, one run a line."""
    parser = _Parser("ps", "[--json]", "Show the live runs of this user and their agents.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for each run")
    options = parser.parse_args(arguments)
    if options.help:
        return _write(parser.format_help().encode())
    runs = list(_snapshots(live_sockets(live_folder(os.environ))))
    if options.json:
        return _write(b"".join(msgspec.json.encode(run) + b"\n" for run in runs))
    if not runs:
        _note("there are no live runs")
        return exit_codes.COMPLETE
    from supervisor.live.tree_text import tree_text

    return _write("\n".join(tree_text(run) for run in runs).encode())


def _snapshots(live: Iterable[LiveSocket]) -> Iterable[RunSnapshot]:
    """The runs that answer; all are asked before the first answer is waited for."""
    with ExitStack() as stack:
        asked: list[LiveConnection] = []
        for each in live:
            try:
                connection = stack.enter_context(LiveConnection(each))
                connection.send(Ps())
            except NotFound:
                continue  # it ended between the two looks
            except ConnectionLost as error:
                _note(str(error))
                continue
            asked.append(connection)
        deadline = time.monotonic() + ANSWER_SECONDS
        for connection in asked:
            try:
                reply = connection.reply(max(0.05, deadline - time.monotonic()))
            except ConnectionLost as error:
                _note(str(error))
                continue
            if isinstance(reply, Shown):
                yield reply.run


def tail(arguments: list[str]) -> int:
    """``corral tail RUN [AGENT] [--plain|--json]``: the run's lines, or one agent's, from now until its end."""
    parser = _Parser("tail", "RUN [AGENT] [--plain | --json]", "Follow a live run, or one of its agents, to its end.")
    _add_run_and_agent(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--plain", action="store_true", help="a readable line for each event; the default on a terminal")
    form.add_argument("--json", action="store_true", help="the lines of stream-json as they are; the default elsewhere")
    options = parser.parse_args(arguments)
    if options.help:
        return _write(parser.format_help().encode())
    with LiveConnection(_chosen(parser, options)) as connection:
        connection.send(Tail(agent=options.agent))
        reply = connection.reply()
        if not isinstance(reply, Tailing):
            raise ConnectionLost(f"the run answered tail with {type(reply).__name__}")
        if options.plain or (not options.json and sys.stdout.isatty()):
            return _tail_plain(connection, reply.run)
        return _write_each(connection.wire_lines())


def _tail_plain(connection: LiveConnection, run: RunSnapshot) -> int:
    from supervisor.live.event_text import EventText

    text = EventText(run)

    def texts() -> Iterable[bytes]:
        for line in connection.wire_lines():
            yield _encoded(text.lines(line))
        yield _encoded(text.rest())

    return _write_each(texts())


def kill(arguments: list[str]) -> int:
    """``corral kill RUN [AGENT]``: end one agent and those below it, or the whole run as SIGTERM does."""
    parser = _Parser("kill", "RUN [AGENT]", "End a live run, or one agent of it with its sub-agents.")
    _add_run_and_agent(parser)
    options = parser.parse_args(arguments)
    if options.help:
        return _write(parser.format_help().encode())
    live = _chosen(parser, options)
    with ExitStack() as stack:
        process = _open_process(live.pid, stack)
        connection = stack.enter_context(LiveConnection(live))
        connection.send(Kill(agent=options.agent))
        reply = connection.reply(AGENT_END_SECONDS)
        if not isinstance(reply, Killed):
            raise ConnectionLost(f"the run answered kill with {type(reply).__name__}")
        if reply.agent_id is not None:
            return _write(f"{_agent_sentence(reply)}\n".encode())
        has_ended = connection.wait_for_close(RUN_END_SECONDS) and (reply.process_goes_on or _has_ended(process))
        if not has_ended:
            raise ConnectionLost(f"run {live.session_id} (pid {live.pid}) was told to end and has not yet")
        if reply.process_goes_on:
            return _write(f"run {live.session_id} was ended, its client is served on (pid {live.pid})\n".encode())
        return _write(f"run {live.session_id} (pid {live.pid}) was ended\n".encode())


def _agent_sentence(killed: Killed) -> str:
    if killed.already_ended:
        return f"agent {killed.agent_id} had ended already ({killed.outcome})"
    below = f", and with it {', '.join(killed.below)}" if killed.below else ""
    if killed.outcome is None:
        return f"agent {killed.agent_id} was told to end{below}, and has not yet"
    if killed.outcome == "cancelled":
        return f"agent {killed.agent_id} was ended{below}"
    return f"agent {killed.agent_id} ended by itself just before ({killed.outcome})"


def _open_process(pid: int, stack: ExitStack) -> int | None:
    """A descriptor of the run's process, which tells its end; None where the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it has just ended, or lives in another namespace
        return None
    stack.callback(os.close, descriptor)
    return descriptor


def _has_ended(process: int | None) -> bool:
    """Whether the process is over soon after it has closed its socket: then its session is free again."""
    return process is None or bool(select.select([process], [], [], RUN_END_SECONDS)[0])


# -- the command line -------------------------------------------------------------------------------------------------


class _Options(argparse.Namespace):
    help: bool
    json: bool
    plain: bool
    run: str | None
    agent: str | None


class _Parser:
    """A parser of one command's arguments; ``-h`` is for the caller to answer."""

    def __init__(self, command: str, usage: str, description: str) -> None:
        self._parser = _RaisingParser(
            prog=f"corral {command}",
            usage=f"corral {command} {usage}",
            description=description,
            add_help=False,
            allow_abbrev=False,
        )
        self._parser.add_argument("-h", "--help", action="store_true", help="show this and end")
        self.add_argument = self._parser.add_argument
        self.add_mutually_exclusive_group = self._parser.add_mutually_exclusive_group
        self.format_help = self._parser.format_help
        self.error = self._parser.error

    def parse_args(self, arguments: list[str]) -> _Options:
        """Raises `WrongUsage`."""
        return self._parser.parse_args(arguments, _Options())


class _RaisingParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message} ({self.prog} --help shows how it is used)")


def _add_run_and_agent(parser: _Parser) -> None:
    run_help = "its session id, the beginning of it, or its pid"
    parser.add_argument("run", nargs="?", metavar="RUN", help=run_help)
    agent_help = "an agent's id, the beginning of it, or its name, as corral ps shows them"
    parser.add_argument("agent", nargs="?", metavar="AGENT", help=agent_help)


def _chosen(parser: _Parser, options: _Options) -> LiveSocket:
    if options.run is None:
        parser.error("RUN is missing")
    return choose_run(options.run, live_sockets(live_folder(os.environ)))


# -- output -----------------------------------------------------------------------------------------------------------


def _encoded(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _write(data: bytes) -> int:
    return _write_each((data,))


def _write_each(pieces: Iterable[bytes]) -> int:
    """Write to standard output as the pieces come; return the exit code."""
    for piece in pieces:
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(1, view) :]
            except OSError:
                return exit_codes.STDOUT_CLOSED
    return exit_codes.COMPLETE


def _note(sentence: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"corral: {printable(sentence)}\n")
