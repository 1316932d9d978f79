"""``corral acp``: speaks the Agent Client Protocol on standard input and output until the input ends.

Standard output is the client's alone: it is moved away first, and what anybody else prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from protocol.key_scrubbing import take_out_of_environment
from protocol.process_tree import become_subreaper, forbid_inspection, kill_strays
from supervisor.acp_agent.serve import serve
from supervisor.acp_agent.sessions import SettingsReader
from supervisor.commands.command_line import help_asked, note, write
from supervisor.config import OneShotSettings, read_plain_settings, read_settings
from supervisor.early_fork import fork_early
from supervisor.errors import WrongUsage
from supervisor.flags import FLAG_OF, FlagValues, parse_one_shot
from supervisor.model_choice import key_variables
from supervisor.settings_file import FOR_ONE_RUN, SettingsFile, read_settings_file
from supervisor.spawn import choose_spawner
from supervisor.xdg import config_folder, state_folder

_HELP = """\
usage: corral acp [options of a run]

Be an agent of the Agent Client Protocol on standard input and output, for editors and other clients: have them start
"corral acp". The client names the folders and the prompts; model, limits and all else are set as for a run, by options,
their variables and the user's file. --trust is the mode that a session begins in, --timeout bounds each prompt.
"""

_FROM_CLIENT = (FOR_ONE_RUN - {"trust-project"}) | {"output-format", "stdin-timeout"}
"""Flags that say what the client says here."""

_NO_PROJECT = Path(os.devnull)
"""What the user's file can't lie in."""

_NO_PROMPT = "(each comes from the client)"


def acp(arguments: list[str]) -> int:
    """Serve one client. Raises `WrongUsage` for wrong options, before anything is read from it.

    The exit code is 0 after the end of the input, else that of a signal or of a closed output.
    """
    if help_asked(arguments):
        return write(_HELP)
    environ = _without_variables(os.environ)
    values, file = _read_options(arguments, environ)
    plain = read_plain_settings(values)
    keys = key_variables(environ, file.providers)
    reader: SettingsReader = partial(_read_settings, tuple(arguments), environ)
    if sys.stdin is not None and sys.stdin.isatty():
        note("this is for programs: it waits for messages of the Agent Client Protocol (corral acp --help says more)")
    take_out_of_environment(keys)
    forbid_inspection()  # before the fork server is forked: it has a copy of the keys
    early = None if plain.spawn == "fresh" else fork_early()
    spawner = choose_spawner(plain.spawn, early, ends_orphans=True)
    become_subreaper()
    try:
        streams = _take_standard_streams()
        return trio.run(serve, streams, spawner, reader, state_folder(environ))
    finally:
        spawner.close()
        kill_strays()


def _read_options(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[FlagValues, SettingsFile]:
    """The options with the user's file behind them."""
    values = parse_one_shot(arguments, environ)
    if values.words:
        raise WrongUsage(f"corral acp takes options, not {values.words[0]!r}: prompts come from the client")
    if values.is_given("version"):
        raise WrongUsage("corral --version tells the version")
    for name in sorted(_FROM_CLIENT):
        if values.is_given(name):
            raise WrongUsage(f"corral acp takes no --{name}: that is the client's to say")
    file, _notes = read_settings_file(config_folder(environ), _NO_PROJECT)
    return values.with_stored(file), file


def _read_settings(arguments: Sequence[str], environ: Mapping[str, str], folder: Path) -> OneShotSettings:
    """The settings of a session in ``folder``. Blocks, as it may ask model servers; raises `WrongUsage`."""
    for_folder = (f"--project-root={folder}", "--prompt", _NO_PROMPT)
    return read_settings(parse_one_shot((*for_folder, *arguments), environ), environ, None)


def _without_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of `_FROM_CLIENT`."""
    left_out = {FLAG_OF[name].variable for name in _FROM_CLIENT}
    return {name: value for name, value in environ.items() if name not in left_out}


def _take_standard_streams() -> tuple[int, int]:
    """Descriptors of our own for what the client sends and reads; 0 is empty from now on, and 1 is standard error."""
    try:
        ours = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
    except OSError as error:
        raise WrongUsage(f"standard input, output and error must be open: {error.strerror}") from None
    return ours
