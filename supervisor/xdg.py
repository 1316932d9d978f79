"""Where a person's files are.

Source: XDG Base Directory Specification 0.8: a relative value is invalid and ignored, an empty one counts as unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.errors import WrongUsage


def config_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_CONFIG_HOME/corral``, by default ``~/.config/corral``; it need not exist."""
    return _base(environ, "XDG_CONFIG_HOME", ".config") / "corral"


def state_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/corral``, by default ``~/.local/state/corral``; it need not exist."""
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "corral"


def _base(environ: Mapping[str, str], variable: str, default: str) -> Path:
    value = environ.get(variable, "")
    if value.startswith("/"):
        return Path(value)
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        try:
            home = str(Path.home())
        except RuntimeError:
            raise WrongUsage(f"there is no home folder: set HOME or {variable} to an absolute path") from None
    return Path(home) / default
