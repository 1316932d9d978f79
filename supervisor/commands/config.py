"""``corral config show``: each setting, its value, and where that comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from supervisor.commands.command_line import help_asked, note, table, write
from supervisor.config import PersonalValues, read_personal_values, read_plain_settings
from supervisor.errors import WrongUsage
from supervisor.flags import ONE_SHOT_FLAGS, Flag, parse_one_shot
from supervisor.settings_file import FOR_ONE_RUN
from supervisor.xdg import config_folder, state_folder

_HELP = """\
usage: corral config show [options of a run]

Show each setting with its value and where it comes from: a flag given here, its variable, a line of the user's file, or
the default. Keys are never shown. What is wrong in the file is told with its line; the exit code is 2 then.
"""


def config(arguments: list[str]) -> int:
    """``corral config show [FLAGS]``; raises `WrongUsage`."""
    if help_asked(arguments):
        return write(_HELP)
    if arguments[:1] != ["show"]:
        raise WrongUsage("corral config takes one word: show (corral config --help shows how it is used)")
    values = parse_one_shot(arguments[1:], os.environ)
    if values.words:
        raise WrongUsage(f"corral config show takes options, not {values.words[0]!r}")
    person = read_personal_values(values, os.environ)
    read_plain_settings(person.values)
    for sentence in person.notes:
        note(sentence)
    return write(_text(person, os.environ))


def _text(person: PersonalValues, environ: Mapping[str, str]) -> str:
    flags = [flag for group in ONE_SHOT_FLAGS.values() for flag in group if flag.name not in FOR_ONE_RUN]
    settings = table([("SETTING", "VALUE", "FROM"), *(_setting(person, flag) for flag in flags)])
    providers = table([("PROVIDER", "ADDRESS", "KEY", "FROM"), *_providers(person, environ)])
    places = table(
        [
            ("project", str(person.project_root)),
            ("user's file", str(person.file.path)),
            ("user's agents", str(config_folder(environ) / "agents")),
            ("sessions", str(state_folder(environ) / "sessions")),
        ]
    )
    return f"{settings}\n{providers}\n{places}"


def _setting(person: PersonalValues, flag: Flag) -> tuple[str, str, str]:
    value = person.values.text(flag.name)
    if value is None:
        return flag.name, flag.default or ("off" if not flag.metavar else "-"), "default"
    if not flag.metavar:
        value = "on" if person.values.switch(flag.name) else "off"
    return flag.name, value, person.values.source(flag.name).removesuffix(f": {flag.name}")


def _providers(person: PersonalValues, environ: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    own = {entry.name for entry in person.file.own_providers}
    for entry in person.file.providers:
        if not entry.base_url:
            continue
        key = entry.key_variable or "-"
        if entry.key_variable and environ.get(entry.key_variable, "").strip():
            key += " (set)"
        yield (
            entry.name,
            entry.base_url,
            key,
            person.file.provider_place(entry.name) if entry.name in own else "built in",
        )
