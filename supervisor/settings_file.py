"""The user's settings file, ``$XDG_CONFIG_HOME/corral/config.toml``.

Its keys are the names of the flags (``max-turns = 50``; an underscore does for a dash), and a table
``[providers.NAME]`` adds a provider or changes one. It is the only file that may set an address, so it is ignored where
it lies inside the project: then it came with the project. Source: the safety contract, rule 1; TOML 1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from supervisor.address import address_fault, is_on_this_machine
from supervisor.errors import SettingsInvalid
from supervisor.flags import FLAG_OF, Flag
from supervisor.provider_table import BUILTIN_PROVIDERS, ProviderEntry, ProviderTable
from supervisor.regular_file import read_regular_file

FILE_NAME = "config.toml"
MAX_FILE_BYTES = 64 * 1024

FOR_ONE_RUN = frozenset({"prompt", "prompt-file", "session", "project-root", "trust-project"})
"""Flags that say what one run is about: they have no place in a file."""

Key: TypeAlias = tuple[str, ...]

_PROVIDERS = "providers"
_PROVIDER_KEYS = ("base-url", "key-variable", "model")
_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class SettingsFile:
    """What the file says. Serves as `supervisor.flags.StoredValues`."""

    def __init__(self, path: Path, text: str = "") -> None:
        """Read ``text``, the content of ``path``; raises `SettingsInvalid` with the file and the line."""
        self.path = path
        self._text = text
        content = _read_toml(path, text) if text else {}
        tables = content.pop(_PROVIDERS, {})
        self._values = self._read_values(content)
        self.own_providers = self._read_providers(tables)

    @property
    def providers(self) -> ProviderTable:
        """The built-in providers with what the file adds and changes."""
        return BUILTIN_PROVIDERS.with_entries(self.own_providers)

    def text(self, name: str) -> str | None:
        """The value of a flag, as the flag would give it; None if the file has none."""
        found = self._values.get(name)
        return None if found is None else found[0]

    def place(self, name: str) -> str:
        """File and line of the value of a flag."""
        return self._at((self._values[name][1],))

    def provider_place(self, name: str) -> str:
        """File and line of a provider's table."""
        return self._at((_PROVIDERS, name))

    # -- values of flags ----------------------------------------------------------------------------------------------

    def _read_values(self, content: Mapping[str, object]) -> dict[str, tuple[str, str]]:
        values: dict[str, tuple[str, str]] = {}
        for key, value in content.items():
            name = key.replace("_", "-")
            flag = FLAG_OF.get(name)
            if flag is None:
                raise self._fault((key,), f"there is no setting {key!r}{_nearest(name, [*FLAG_OF, _PROVIDERS])}")
            if name in FOR_ONE_RUN:
                raise self._fault((key,), f"{key} is for one run: give it as --{name}")
            if name in values:
                raise self._fault((key,), f"{key} is there twice, with a dash and with an underscore")
            values[name] = (self._as_given(flag, key, value), key)
        return values

    def _as_given(self, flag: Flag, key: str, value: object) -> str:
        kind = _KINDS.get(flag.metavar, _TEXT)
        if type(value) not in kind.types:
            raise self._fault((key,), f"{key} takes {kind.words}, not {_in_words(value)}")
        return str(int(value)) if isinstance(value, bool) else str(value)

    # -- providers ----------------------------------------------------------------------------------------------------

    def _read_providers(self, tables: object) -> tuple[ProviderEntry, ...]:
        if not isinstance(tables, dict):
            raise self._fault((_PROVIDERS,), "providers are tables: [providers.NAME]")
        named = cast("dict[str, object]", tables)
        return tuple(self._read_provider(name, table) for name, table in named.items())

    def _read_provider(self, name: str, table: object) -> ProviderEntry:
        if not isinstance(table, dict) or not _PROVIDER_NAME.fullmatch(name):
            raise self._fault((_PROVIDERS, name), f"{name!r} is no provider: write [providers.NAME], in small letters")
        values = self._read_provider_values(name, cast("dict[str, object]", table))
        known = BUILTIN_PROVIDERS.find(name) or ProviderEntry(name=name)
        base_url = values.get("base-url", known.base_url).rstrip("/")
        if not base_url:
            raise self._fault((_PROVIDERS, name), f"provider {name} needs a base-url")
        key_variable = values.get("key-variable", known.key_variable)
        is_at_home = base_url == known.base_url
        return msgspec.structs.replace(
            known,
            base_url=base_url,
            key_variable=key_variable,
            needs_key=known.needs_key if is_at_home else "key-variable" in values,
            is_local=known.is_local or is_on_this_machine(base_url),
            model=values.get("model", known.model),
        )

    def _read_provider_values(self, name: str, table: Mapping[str, object]) -> dict[str, str]:
        values: dict[str, str] = {}
        for key, value in table.items():
            place = (_PROVIDERS, name, key)
            known = key.replace("_", "-")
            if known in ("api-key", "key"):
                raise self._fault(place, "no key is kept in a file: put it in a variable, and its name in key-variable")
            if known not in _PROVIDER_KEYS:
                raise self._fault(place, f"a provider has no {key!r}{_nearest(known, _PROVIDER_KEYS)}")
            if not isinstance(value, str) or not value:
                raise self._fault(place, f"{key} takes a text, not {_in_words(value)}")
            if known == "base-url" and (fault := address_fault(value.rstrip("/"))):
                raise self._fault(place, f"{key} {fault}")
            if known == "key-variable" and not _VARIABLE.fullmatch(value):
                raise self._fault(place, f"{key} takes the name of an environment variable, not the key itself")
            values[known] = value
        return values

    # -- places -------------------------------------------------------------------------------------------------------

    def _fault(self, key: Key, words: str) -> SettingsInvalid:
        return SettingsInvalid(f"{self._at(key)}: {words}")

    def _at(self, key: Key) -> str:
        line = line_of(self._text, key)
        return f"{self.path}, line {line}" if line else str(self.path)


def line_of(text: str, key: Key) -> int:
    """The line, from 1, on which ``key`` is set in the TOML ``text``; 0 if it is nowhere.

    The parser tells no lines. But the text up to the end of a statement is TOML by itself, and up to the middle of one
    it is not: so the key begins on the line after the last good beginning that did not have it.
    """
    import tomllib

    lines = text.splitlines(keepends=True)
    good = 0
    for count in range(1, len(lines) + 1):
        try:
            found: object = tomllib.loads("".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for part in key:
            found = cast("dict[str, object]", found).get(part) if isinstance(found, dict) else None
        if found is not None:
            return good + 1
        good = count
    return 0


def read_settings_file(config_folder: Path, project_root: Path) -> tuple[SettingsFile, tuple[str, ...]]:
    """The user's file and notes for a person; an empty one where there is none, or where the project brought it.

    ``project_root`` has no symbolic links in it. Raises `SettingsInvalid`.
    """
    path = config_folder / FILE_NAME
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return SettingsFile(path), ()
    except OSError as error:
        raise SettingsInvalid(f"{path} can't be read: {error.strerror or error}") from None
    if path.resolve().is_relative_to(project_root) or path.parent.resolve().is_relative_to(project_root):
        return SettingsFile(path), (f"{path} is ignored: it lies inside the project, whose files set nothing",)
    try:
        return SettingsFile(path, content.decode("utf-8-sig")), ()
    except UnicodeDecodeError:
        raise SettingsInvalid(f"{path} is not UTF-8 text") from None


class _Kind(msgspec.Struct, frozen=True):
    """What a flag takes in a file; ``bool`` is no whole number here."""

    types: tuple[type, ...]
    words: str


_TEXT = _Kind((str,), "a text in quotes")
_KINDS = {
    "": _Kind((bool,), "true or false"),
    "N": _Kind((int,), "a whole number"),
    "S": _Kind((int, float), "a number of seconds"),
    "X": _Kind((int, float), "a number"),
    "SIZE": _Kind((int, str), 'a size such as "512M"'),
}


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _read_toml(path: Path, text: str) -> dict[str, object]:
    import tomllib  # a run without a file does not pay for it

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsInvalid(f"{path} is no TOML: {error}") from None


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib  # only a fault needs it

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
