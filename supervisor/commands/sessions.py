"""``corral sessions list | show | export | delete``: what is stored, and how to be rid of it."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from datetime import datetime

import msgspec

from protocol.content import AssistantMessage, Message, Summary, ToolResult, UserMessage
from supervisor import exit_codes
from supervisor.commands.command_line import CommandParser, help_asked, note, table, write
from supervisor.errors import StorageFailed, WrongUsage
from supervisor.live.figures import duration, tokens
from supervisor.store.folder import SessionLock, find_session, session_folders
from supervisor.store.stored_session import SessionLine, StoredAgent, StoredRun, StoredSession, read_line, read_session
from supervisor.xdg import state_folder

_HELP = """\
usage: corral sessions list [--json] [--all]
       corral sessions show ID [--json]
       corral sessions export ID
       corral sessions delete ID...

list      the newest 20 sessions with their state: running, complete, error, limit, cancelled, or crashed, where the
          process of the last run died; --all shows all
show      one session: its runs, its agents and what they used, and how it went
export    everything that is stored of a session, as one JSON object
delete    remove sessions for good; one in use is left alone

The beginning of an ID will do where no other session's begins so. corral -s ID goes on with a session.
"""
_LISTED = 20
_SHORT = 60
_LINE = 200


def sessions(arguments: list[str]) -> int:
    """``corral sessions``; raises `WrongUsage`, `UnknownSession`, `SessionLocked` and `StorageFailed`."""
    if help_asked(arguments):
        return write(_HELP)
    command = _COMMANDS.get(arguments[0]) if arguments else None
    if command is None:
        raise WrongUsage(f"corral sessions takes one of {', '.join(_COMMANDS)} (corral sessions --help says more)")
    return command(arguments[1:])


def _list(arguments: list[str]) -> int:
    parser = _parser("list", "[--json] [--all]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args(arguments)
    folders = session_folders(state_folder(os.environ))[::-1]
    shown = folders if options.all or options.json else folders[:_LISTED]
    lines = [read_line(folder) for folder in shown]
    if options.json:
        return write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    if not lines:
        note("no session is stored yet")
        return exit_codes.COMPLETE
    code = write(table([("SESSION", "STATE", "STARTED", "TOKENS", "MODEL", "PROMPT"), *map(_row, lines)]))
    if len(folders) > len(shown):
        note(f"{len(folders) - len(shown)} older ones: corral sessions list --all")
    return code


def _row(line: SessionLine) -> tuple[str, ...]:
    started = _when(line.started) if line.started else "-"
    return line.session_id, line.state, started, tokens(line.tokens), line.model or "-", _cut(line.prompt, _SHORT)


def _show(arguments: list[str]) -> int:
    parser = _parser("show", "ID [--json]")
    parser.add_argument("session", metavar="ID")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    session = read_session(find_session(state_folder(os.environ), options.session))
    if options.json:
        bare = tuple(msgspec.structs.replace(agent, messages=()) for agent in session.agents)
        return write(msgspec.json.encode(msgspec.structs.replace(session, agents=bare)) + b"\n")
    return write(_text(session))


def _export(arguments: list[str]) -> int:
    parser = _parser("export", "ID")
    parser.add_argument("session", metavar="ID")
    options = parser.parse_args(arguments)
    session = read_session(find_session(state_folder(os.environ), options.session))
    return write(msgspec.json.encode(session) + b"\n")


def _delete(arguments: list[str]) -> int:
    parser = _parser("delete", "ID...")
    parser.add_argument("sessions", metavar="ID", nargs="+")
    options = parser.parse_args(arguments)
    home = state_folder(os.environ)
    folders = dict.fromkeys(find_session(home, each) for each in options.sessions)  # all are known before one is gone
    for folder in folders:
        lock = SessionLock(folder)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StorageFailed(f"{folder} can't be removed: {error.strerror or error}") from None
        finally:
            lock.release()
        note(f"session {folder.name} is deleted")
    return exit_codes.COMPLETE


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": _list,
    "show": _show,
    "export": _export,
    "delete": _delete,
}


def _parser(name: str, usage: str) -> argparse.ArgumentParser:
    return CommandParser(f"sessions {name}", usage, "")


# -- the text of a session --------------------------------------------------------------------------------------------


def _text(session: StoredSession) -> str:
    head = [
        ("session", session.session_id),
        ("state", session.state),
        ("project", session.project_root),
        ("model", f"{session.model} of {session.provider}"),
        ("begun", _when(session.created)),
        ("used", f"{tokens(session.usage.total_tokens)} tokens in {session.usage.api_calls} model calls"),
    ]
    if session.uncertain_calls:
        head.append(("uncertain", f"{session.uncertain_calls} model calls may have been billed without an answer"))
    runs = table([("RUN", "STARTED", "TOOK", "STATE", "EXIT"), *map(_run, session.runs)])
    agents = table([("AGENT", "NAME", "OUTCOME", "TOKENS", "CALLS"), *(_agent(agent) for agent in session.agents)])
    main = next((agent for agent in session.agents if agent.parent_agent_id is None), None)
    story = "".join(f"{line}\n" for message in (main.messages if main else ()) for line in _said(message))
    return f"{table(head)}\n{runs}\n{agents}\n{story}"


def _run(run: StoredRun) -> tuple[str, ...]:
    took = duration(round(1000 * (run.ended - run.started))) if run.ended is not None else "-"
    code = "-" if run.exit_code is None else str(run.exit_code)
    return str(run.epoch), _when(run.started), took, run.state, code


def _agent(agent: StoredAgent) -> tuple[str, ...]:
    outcome = agent.outcome or "-"
    return agent.agent_id, agent.agent_name, outcome, tokens(agent.usage.total_tokens), str(agent.usage.api_calls)


def _said(message: Message) -> list[str]:
    """What an item of the main agent's transcript says, in a line or a few."""
    match message:
        case UserMessage(text=text):
            return [f"> {_cut(text, _LINE)}"]
        case AssistantMessage(text=text, tool_calls=calls):
            spoken = text.strip().splitlines()
            return spoken + [f"  {call.name} {_cut(call.arguments, _LINE)}" for call in calls]
        case ToolResult(outcome=outcome, name=name, output=output):
            return [] if outcome == "success" else [f"  {name}: {outcome}: {_cut(output, _LINE)}"]
        case Summary(replaces=replaces):
            return [f"  ({replaces} messages were summed up)"]


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _cut(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3] + "..."
