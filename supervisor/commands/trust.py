"""``corral trust DIR``: let the commands run that a project's own files name, as long as the files stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.commands.command_line import CommandParser, help_asked, write
from supervisor.errors import WrongUsage
from supervisor.project_trust import TrustStore, files_with_commands
from supervisor.xdg import state_folder


def trust(arguments: list[str]) -> int:
    """``corral trust [--show | --remove] DIR``; raises `WrongUsage` and `StorageFailed`."""
    parser = CommandParser(
        "trust",
        "[--show | --remove] DIR",
        "Let a run in DIR start the commands that the project's own files name. The trust is\n"
        "in the content of those files: when one is changed, added or taken away, it is gone.",
    )
    parser.add_argument("folder", metavar="DIR", help="the project's root folder")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--show", action="store_true", help="only say which files name commands, and whether trusted")
    choice.add_argument("--remove", action="store_true", help="take the trust back")
    if help_asked(arguments):
        return write(parser.format_help())
    options = parser.parse_args(arguments)
    root = _project(options.folder)
    store = TrustStore(state_folder(os.environ))
    if options.remove:
        return write(f"{root} is not trusted any more\n" if store.forget(root) else f"{root} was not trusted\n")
    files = files_with_commands(root)
    if not files:
        return write(f"no file of {root} names a command: there is nothing to trust\n")
    if options.show:
        state = "trusted" if store.is_trusted(root, files) else "not trusted"
    else:
        store.trust(root, files)
        state = "trusted, as long as they stay as they are"
    listed = "".join(f"  {name}  {digest[:12]}\n" for name, digest in files.items())
    return write(f"{root}: {state}\n{listed}")


def _project(name: str) -> Path:
    try:
        root = Path(name).resolve(strict=True)
    except (OSError, ValueError):
        raise WrongUsage(f"there is no folder {name}") from None
    if not root.is_dir():
        raise WrongUsage(f"{root} is not a folder")
    return root
