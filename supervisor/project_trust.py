"""Which projects a person lets run commands that their own files name.

Trust is given to the content of the files, not to the folder: a file that is changed, new or gone asks again. A record
lies in ``trust/`` of the state folder, one for each project. Source: the safety contract, rules 1 and 8.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from supervisor.errors import StorageFailed, WrongUsage
from supervisor.regular_file import read_regular_file
from supervisor.store.folder import make_private

MAX_FILES = 200
MAX_FILE_BYTES = 1024 * 1024
COMMAND_FIELDS = ("acp", "command", "mcp", "mcp_servers", "hooks")
"""Fields of a project's agent file that name a command."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TrustRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was trusted: ``files`` has the SHA-256 of each file that names a command, by its path in the project."""

    project_root: str
    files: dict[str, str]


def files_with_commands(project_root: Path) -> dict[str, str]:
    """The project's files that name a command, path to SHA-256; raises `WrongUsage` if one can't be read."""
    found: dict[str, str] = {}
    folder = project_root / "agents"
    try:
        paths = sorted(folder.glob("*.json"))[:MAX_FILES]
    except OSError as error:
        raise WrongUsage(f"{folder} can't be read: {error.strerror}") from None
    for path in paths:
        try:
            content = read_regular_file(path, MAX_FILE_BYTES)
        except OSError:
            continue  # it is no agent either
        if _names_a_command(content):
            found[str(path.relative_to(project_root))] = _sha256(content)
    return found


def _names_a_command(content: bytes) -> bool:
    try:
        fields = _fields.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return any(field.lower().replace("-", "_") in COMMAND_FIELDS for field in fields)


class TrustStore:
    """The records below ``state_folder``. Projects are told apart by their real path."""

    def __init__(self, state_folder: Path) -> None:
        self._folder = state_folder / "trust"

    def is_trusted(self, project_root: Path, files: dict[str, str]) -> bool:
        """Whether exactly these ``files`` (as `files_with_commands` gives them) were trusted; no files need no trust.

        A record that can't be read is none.
        """
        if not files:
            return True
        try:
            record = msgspec.json.decode(read_regular_file(self._path(project_root), MAX_FILE_BYTES), type=TrustRecord)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return record == TrustRecord(project_root=str(project_root), files=files)

    def trust(self, project_root: Path, files: dict[str, str]) -> None:
        """Write the record, whole or not at all; raises `StorageFailed`."""
        record = TrustRecord(project_root=str(project_root), files=files)
        path = self._path(project_root)
        import secrets

        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            make_private(self._folder)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                    file.write(msgspec.json.encode(record))
                unfinished.rename(path)
            except OSError:
                with suppress(OSError):
                    unfinished.unlink()
                raise
        except OSError as error:
            raise StorageFailed(f"the trust in {project_root} can't be stored: {error.strerror or error}") from None

    def forget(self, project_root: Path) -> bool:
        """Take the trust back; False if there was none. Raises `StorageFailed`."""
        try:
            self._path(project_root).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageFailed(f"the trust in {project_root} can't be taken back: {error.strerror or error}") from None
        return True

    def _path(self, project_root: Path) -> Path:
        name = _sha256(os.fsencode(project_root))
        return self._folder / f"{name}.json"


def _sha256(content: bytes) -> str:
    import hashlib  # loads a big library: a project without commands does not pay for it

    return hashlib.sha256(content).hexdigest()
