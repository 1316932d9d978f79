"""The flags of the command line and the variables that stand in for them.

Standard library only, so that ``--help`` is quick. This module knows what was given and where; what the values mean is
read by `supervisor.config` through the typed methods of `FlagValues`.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol

from supervisor.errors import WrongUsage

MAX_WHOLE_NUMBER = 2**53 - 1
"""The largest whole number that every JSON reader keeps exactly."""


class Flag(NamedTuple):
    """A line of the table. A flag without a ``metavar`` is a switch."""

    name: str
    metavar: str
    help: str
    short: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that stands in for the flag."""
        return "CORRAL_" + self.name.upper().replace("-", "_")

    @property
    def default(self) -> str:
        """What holds where nothing is given, as the help says it; empty for nothing."""
        found = _DEFAULT.search(self.help)
        return (found[1] or found[2]) if found else ""


ONE_SHOT_FLAGS: dict[str, tuple[Flag, ...]] = {
    "prompt": (
        Flag("prompt", "TEXT", "what the agent is to do; - reads it from standard input", "-p"),
        Flag("prompt-file", "FILE", "read the prompt from a file"),
        Flag("agent", "NAME", "the agent that does it (default: default)", "-a"),
        Flag("session", "ID", "go on with a stored session; the beginning of its id will do", "-s"),
        Flag("project-root", "DIR", "the folder it works in (default: the current one)", "-C"),
        Flag("trust", "MODE", "plan (reads only), safe (no side effect without a yes) or auto (default)"),
        Flag("trust-project", "", "let the project's own files name commands, as corral trust does, for this run"),
    ),
    "model": (
        Flag("provider", "NAME", "lm-studio, ollama, llama-cpp, vllm, openai, openrouter, scripted, ..."),
        Flag("model", "NAME", "the model's name as the provider knows it"),
        Flag("base-url", "URL", "address of the API, up to and without /chat/completions"),
        Flag("script", "FILE", "scenario of the scripted model (--provider scripted)"),
        Flag("max-context-tokens", "N", "the model's context window"),
        Flag("max-tokens", "N", "most tokens of one reply"),
        Flag("temperature", "X", "sampling temperature"),
    ),
    "limits of the whole tree of agents": (
        Flag("max-turns", "N", "model calls"),
        Flag("max-tokens-total", "N", "prompt and completion tokens"),
        Flag("timeout", "S", "wall time, in seconds"),
        Flag("max-agents", "N", "sub-agents in all (default: 64)"),
        Flag("max-parallel-agents", "N", "agents at work at once (default: 16)"),
        Flag("max-agent-depth", "N", "levels of sub-agents (default: 4)"),
    ),
    "output": (
        Flag("output-format", "FORMAT", "text (default), json or stream-json"),
        Flag("quiet", "", "no notes on standard error", "-q"),
        Flag("verbose", "", "say on standard error what the agents do, as on a terminal, and what tools write", "-v"),
    ),
    "patience, in seconds": (
        Flag("retry-delay", "S", "before the first retry of a model call; doubles (default: 1)"),
        Flag("connect-timeout", "S", "for a connection to the model (default: 15)"),
        Flag("idle-timeout", "S", "for a silent model (default: 300)"),
        Flag("call-timeout", "S", "for one whole model call (default: 1800)"),
        Flag("stdin-timeout", "S", "for a pipe on standard input beside a prompt (default: 3)"),
        Flag("cancel-grace", "S", "for a cancelled agent before it is killed (default: 2)"),
        Flag("heartbeat-timeout", "S", "for an agent's process that gives no sign of life (default: 15)"),
    ),
    "processes; a SIZE is in bytes or has K, M, G behind it": (
        Flag("spawn", "MODE", "how they start: fork, fresh (each by exec) or auto (default: fork where it is safe)"),
        Flag("pass-env", "NAMES", "variables that commands get besides PATH, HOME and the like; commas between"),
        Flag("no-restart", "", "an agent whose process died is given up at once"),
        Flag("agent-memory", "SIZE", "memory of one agent: its process, and its tools too where a cgroup can be had"),
        Flag("agent-cpu-seconds", "S", "processor time of each process of an agent"),
        Flag("agent-open-files", "N", "open files of each process of an agent"),
        Flag("agent-file-size", "SIZE", "of each file that an agent or its tools write"),
        Flag("tree-memory", "SIZE", "memory of all agents together before a new one waits"),
        Flag("mem-free", "SIZE", "memory the machine keeps free before a new agent waits (default: 512M)"),
    ),
}
"""The flags of a one-shot run under the headings of its help."""

_DEFAULT = re.compile(r"(\S+) \(default\)|\(default: ([^)]+)\)")
_SIZE = re.compile(r"([0-9]{1,16})([KMGT]?)(?:i?B)?", re.IGNORECASE)

DESCRIPTION = (
    "Run a coding agent, its tools and its parallel sub-agents to the end, each agent in a process of its own."
)

EPILOG = """\
Every flag has a variable CORRAL_<FLAG>, such as CORRAL_MAX_TURNS, and a key of its name in
~/.config/corral/config.toml; the flag wins over the variable, that over the file. What comes through a pipe is
put behind the prompt, and so is each file that the prompt names as @FILE.

examples:
  corral "Fix the failing test" --provider lm-studio --model qwen3-coder
  git diff | corral "Review this change" --agent explore
  corral "Explain @src/main.py" --output-format json

commands: corral batch | acp | sessions | config | trust | ps | tail | kill, each with --help

exit codes: 0 complete, 1 error, 2 wrong usage, 3 a limit was reached, 4 session in use, 5 storage failed,
75 model unreachable (try again later), 129/130/143 a signal, 141 standard output closed
"""


class StoredValues(Protocol):
    """Values that a person keeps, by the names of the flags."""

    def text(self, name: str) -> str | None:
        """The value, as a flag would give it; None if there is none."""
        ...

    def place(self, name: str) -> str:
        """Where the value stands."""
        ...


class FlagValues:
    """What the command line, the environment and the user's file say, the first of them that says anything.

    An empty variable is none. Every method raises `WrongUsage` with a sentence that names the flag, the variable or
    the line, whichever gave the value.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        words: Sequence[str],
        environ: Mapping[str, str],
        stored: StoredValues | None = None,
    ) -> None:
        self._given = given
        self._environ = environ
        self._stored = stored
        self.words = tuple(words)

    def with_stored(self, stored: StoredValues) -> FlagValues:
        """The same, with ``stored`` for what neither the command line nor the environment says."""
        return FlagValues(self._given, self.words, self._environ, stored)

    def is_given(self, name: str) -> bool:
        """Whether the flag itself is on the command line."""
        return name in self._given

    def text(self, name: str) -> str | None:
        """The value as it was given, None if it wasn't."""
        return self._sourced(name)[0]

    def source(self, name: str) -> str:
        """Where the value comes from: the flag, its variable or the place in the file; empty where there is none."""
        value, source = self._sourced(name)
        return source if value is not None else ""

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of ``choices``."""
        value, source = self._sourced(name)
        if value is None:
            return default
        known = tuple(choices)
        if value not in known:
            raise WrongUsage(f"{source} is one of {', '.join(known)}, not {value!r}")
        return value

    def size(self, name: str) -> int | None:
        """A number of bytes over 0, as a whole number with K, M, G or T behind it, or nothing; powers of 1024."""
        value, source = self._sourced(name)
        if value is None:
            return None
        match = _SIZE.fullmatch(value.strip())
        size = int(match[1]) << (10 * " KMGT".index(match[2].upper() or " ")) if match else 0
        if not 0 < size <= MAX_WHOLE_NUMBER:
            raise WrongUsage(f"{source} takes a size such as 512M or 4G, not {value!r}")
        return size

    def whole_number(self, name: str, *, least: int = 1) -> int | None:
        """A whole number from ``least`` to `MAX_WHOLE_NUMBER`."""
        value, source = self._sourced(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= MAX_WHOLE_NUMBER:
            raise WrongUsage(f"{source} takes a whole number of at least {least}, not {value!r}")
        return number

    def number(self, name: str, *, zero: bool = False) -> float | None:
        """A finite number over 0, or 0 itself where ``zero`` says so."""
        value, source = self._sourced(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise WrongUsage(f"{source} takes a number {'of at least' if zero else 'over'} 0, not {value!r}")
        return number

    def switch(self, name: str) -> bool:
        """Whether a switch is on; its variable takes 1, true, yes, on and 0, false, no, off."""
        value, source = self._sourced(name)
        if value is None:
            return False
        if value.lower() not in _SWITCH:
            raise WrongUsage(f"{source} is 1 or 0, not {value!r}")
        return _SWITCH[value.lower()]

    def _sourced(self, name: str) -> tuple[str | None, str]:
        """The value and what to call the place that it comes from."""
        if name in self._given:
            return self._given[name], f"--{name}"
        variable = FLAG_OF[name].variable
        value = self._environ.get(variable) or None
        if value is None and self._stored is not None and (stored := self._stored.text(name)) is not None:
            return stored, f"{self._stored.place(name)}: {name}"
        return value, variable


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
FLAG_OF = {flag.name: flag for group in ONE_SHOT_FLAGS.values() for flag in group}
"""Each flag by its name."""


class _HelpText(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal. Asked for its own width, argparse would import what packs files for every run."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_terminal_width() - 2)


def _terminal_width() -> int:
    if (columns := os.environ.get("COLUMNS", "")).isdecimal():
        return int(columns) or 80
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message} (corral --help shows the options)")


def one_shot_parser() -> argparse.ArgumentParser:
    """The parser behind `parse_one_shot` and the text of ``--help``."""
    parser = _Parser(
        prog="corral",
        usage="corral [-p] TEXT [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_HelpText,
        add_help=False,
        allow_abbrev=False,
    )
    for heading, flags in ONE_SHOT_FLAGS.items():
        group = parser.add_argument_group(heading)
        for flag in flags:
            spellings = (flag.short, f"--{flag.name}") if flag.short else (f"--{flag.name}",)
            if flag.metavar:
                group.add_argument(*spellings, dest=flag.name, metavar=flag.metavar, help=flag.help)
            else:
                group.add_argument(*spellings, dest=flag.name, action="store_const", const="1", help=flag.help)
    group = parser.add_argument_group("about")
    group.add_argument("-h", "--help", action="store_const", const="1", help="show this and end")
    group.add_argument("--version", action="store_const", const="1", help="show the version and end")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser


def parse_one_shot(arguments: Sequence[str], environ: Mapping[str, str]) -> FlagValues:
    """Read the command line of a one-shot run. Raises `WrongUsage` for an unknown flag or a missing value.

    What follows ``-p`` is its text, whatever it looks like, and all after ``--`` is text too.
    """
    options, prompt, text_after = _take_text(arguments)
    parsed, unknown = one_shot_parser().parse_known_intermixed_args(options)
    found: dict[str, str | list[str] | None] = vars(parsed)
    if unknown:
        raise WrongUsage(_unknown_option(unknown[0]))
    given = {name: value for name, value in found.items() if isinstance(value, str)}
    if prompt is not None:
        given["prompt"] = prompt
    words = [word for value in found.values() if isinstance(value, list) for word in value]
    return FlagValues(given, [*words, *text_after], environ)


def _take_text(arguments: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """The options without the prompt, the prompt, the words after ``--``.

    argparse is not shown what is text: it would take a prompt that starts with a dash for an option.
    """
    options: list[str] = []
    prompt: str | None = None
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            break
        if argument in ("-p", "--prompt"):
            prompt = next(rest, None)
            if prompt is None:
                raise WrongUsage(f'{argument} takes the prompt: {argument} "TEXT"')
        elif argument.startswith("--prompt="):
            prompt = argument.removeprefix("--prompt=")
        elif argument.startswith("-p"):
            prompt = argument.removeprefix("-p")
        else:
            options.append(argument)
    return options, prompt, list(rest)


def _unknown_option(option: str) -> str:
    import difflib

    name = option.partition("=")[0]
    near = difflib.get_close_matches(name, [f"--{known}" for known in FLAG_OF], n=1)
    hint = f"did you mean {near[0]}?" if near else "corral --help shows the options"
    return f"there is no option {name}; {hint} (a prompt that starts with - goes after -p)"
