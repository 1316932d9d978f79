"""Which cgroup, if any, is ours to divide among agents.

That needs cgroup v2 mounted and a cgroup that has the memory controller to give: the supervisor's own, where that may
hold both processes and cgroups (the root), or the one around it, where the service manager says that it was delegated
to us (systemd: ``Delegate=memory`` with ``DelegateSubgroup=``). No cgroup further out is touched: what the supervisor
was put under holds for its agents too.

Source: the Linux kernel's documentation of cgroup v2; systemd, "Control Group APIs and Delegation".
"""

from __future__ import annotations

import os
from pathlib import Path

_DELEGATED = "user.delegate"
"""The extended attribute by which systemd marks what it delegates."""


def find_base(proc: Path) -> Path | None:
    """The cgroup that ours may be made in, with the memory controller switched on for them; None if there is none.

    ``proc`` holds ``cgroup`` and ``mountinfo`` of this process.
    """
    try:
        own = read_own_path((proc / "cgroup").read_text(encoding="utf-8"))
        mount = read_mount_point((proc / "mountinfo").read_text(encoding="utf-8"))
    except OSError:
        return None
    if own is None or mount is None:
        return None
    folder = mount / own.lstrip("/")
    if _can_divide(folder):
        return folder
    return folder.parent if folder != mount and _is_delegated(folder.parent) and _can_divide(folder.parent) else None


def read_own_path(cgroup: str) -> str | None:
    """The process's path in the v2 hierarchy, from the text of ``/proc/PID/cgroup``. Source: cgroups(7).

    None where it has none that can be reached: no v2, removed, or outside of the cgroup namespace.
    """
    for line in cgroup.splitlines():
        if line.startswith("0::/"):
            path = line.removeprefix("0::")
            return None if path.endswith(" (deleted)") or ".." in path.split("/") else path
    return None


def read_mount_point(mountinfo: str) -> Path | None:
    """Where the v2 hierarchy is mounted whole, from the text of ``/proc/PID/mountinfo``; None: nowhere.

    Source: proc(5). A mount point with a space or the like in it is written with escapes and not taken.
    """
    for line in mountinfo.splitlines():
        mount, _, system = line.partition(" - ")
        fields = mount.split(" ")
        if system.startswith("cgroup2 ") and len(fields) > 4 and fields[3] == "/" and "\\" not in fields[4]:
            return Path(fields[4])
    return None


def read_count(text: str, key: str) -> int:
    """The number behind ``key`` in a file of lines "key number"; 0 where there is none."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == key and number.isdecimal():
            return int(number)
    return 0


def _can_divide(folder: Path) -> bool:
    """Whether cgroups with a ceiling of memory can be made in ``folder``; switches the controller on for them.

    The kernel refuses that where processes are in it, unless it is the root.
    """
    try:
        if "memory" not in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
            return False
        if not all(os.access(path, os.W_OK) for path in (folder, folder / "cgroup.procs")):
            return False
        switched_on = folder / "cgroup.subtree_control"
        if "memory" not in switched_on.read_text(encoding="ascii").split():
            switched_on.write_text("+memory", encoding="ascii")
    except OSError:
        return False
    return True


def _is_delegated(folder: Path) -> bool:
    try:
        return os.getxattr(folder, _DELEGATED) == b"1"
    except (AttributeError, OSError):  # not Linux; not marked
        return False
