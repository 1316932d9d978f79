"""git as a batch uses it: what a repository is before anything runs, and the commands that an attempt needs.

Our own calls run no hooks, no file system monitor and no pager, ask nobody anything, and take no setting from variables
of git's own. Source: git(1), git-worktree(1), gitrepository-layout(5).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from supervisor.batch.records import Changes

GIT = (
    "git",
    "--no-pager",
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "advice.addEmbeddedRepo=false", "-c", "submodule.recurse=false"),
)
_NO_LFS = ("-c", "filter.lfs.smudge=", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false")
_DIFF = (
    *("diff", "--cached", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
_OURS = {
    "GIT_AUTHOR_NAME": "corral",
    "GIT_AUTHOR_EMAIL": "corral@localhost",
    "GIT_COMMITTER_NAME": "corral",
    "GIT_COMMITTER_EMAIL": "corral@localhost",
}
"""Who commits, where we do."""
QUERY_SECONDS = 60.0

PATCH_SCRIPT = """\
set -e
base=$1 patch=$2; shift 2
cp -- "$GIT_DIR/index" "$GIT_INDEX_FILE" 2>/dev/null || "$@" read-tree HEAD
"$@" add -A -- .
"$@" {diff} "$base" > "$patch"
"$@" {diff} --numstat -z "$base"
""".format(diff=" ".join(_DIFF))
"""Write what was done since the commit ``$1`` to the file ``$2``: commits, files that were never added, binary ones.

It works on a copy of the index. What is ignored is left out.
"""

REF_SCRIPT = """\
set -e
name=$1 message=$2; shift 2
tree=$("$@" write-tree)
commit=$("$@" commit-tree "$tree" -p HEAD -m "$message")
"$@" update-ref "$name" "$commit"
"""

REF_OF_PATCH_SCRIPT = """\
set -e
base=$1 patch=$2 name=$3 message=$4; shift 4
"$@" read-tree "$base"
[ ! -s "$patch" ] || "$@" apply --cached --binary --whitespace=nowarn "$patch"
tree=$("$@" write-tree)
commit=$("$@" commit-tree "$tree" -p "$base" -m "$message")
"$@" update-ref "$name" "$commit"
"""
"""Let the name ``$3`` stand for the commit ``$1`` with the patch ``$2``, without any files."""

REMOVE_SCRIPT = """\
work=$1; shift
[ $# -eq 0 ] || "$@" worktree remove --force --force -- "$work" >/dev/null 2>&1 || :
if [ -e "$work" ] && [ ! -L "$work" ]; then chmod -R u+rwX -- "$work" 2>/dev/null || :; fi
rm -rf -- "$work" || exit 1
[ $# -eq 0 ] || "$@" worktree remove --force --force -- "$work" >/dev/null 2>&1 || :
"""
"""Remove a work folder, whatever modes its files were given; with words behind it, as a worktree of that git."""


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """``top`` is the folder of the files, ``common`` the one that all worktrees share; both real paths."""

    top: str
    common: str


def git_environment(also: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a git call of ours."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**ours, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(also or {})}


# -- before anything runs ---------------------------------------------------------------------------------------------


def find_repository(folder: Path) -> Repository | None:
    """The repository that ``folder`` lies in; None for none, a bare one, or where there is no git."""
    told = ask(folder, "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
    lines = told.splitlines() if told is not None else []
    if len(lines) != 2:
        return None
    return Repository(top=os.path.realpath(lines[0]), common=os.path.realpath(lines[1]))


def resolve_commit(repository: Repository, name: str) -> str | None:
    """The full name of the commit that ``name`` stands for; None for none."""
    told = ask(Path(repository.top), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return told.strip() if told else None


def has_folder(repository: Repository, sha: str, folder: Path) -> bool:
    """Whether ``folder`` of the repository is a folder in the commit too."""
    inside = folder.relative_to(repository.top).as_posix()
    if inside == ".":
        return True
    told = ask(Path(repository.top), "cat-file", "-t", f"{sha}:{inside}")
    return told is not None and told.strip() == "tree"


def is_dirty(repository: Repository, ours: Sequence[Path]) -> bool:
    """Whether anything in the repository is not committed; ``ours``, the batch's own files, do not count."""
    excluded = [f":(exclude,top){path.relative_to(repository.top)}" for path in ours if _lies_in(path, repository.top)]
    told = ask(Path(repository.top), "status", "--porcelain", "--", ":(top)", *excluded)
    return bool(told and told.strip())


def unfilled(repository: Repository, sha: str) -> tuple[str, ...]:
    """What a worktree of the commit will lack: submodules, files of LFS."""
    top = Path(repository.top)
    found: list[str] = []
    if ask(top, "cat-file", "-e", f"{sha}:.gitmodules") is not None:
        found.append("submodules")
    if ask(top, "grep", "-q", "filter=lfs", sha, "--", "*.gitattributes") is not None:
        found.append("files of Git LFS")
    return tuple(found)


def ask(folder: Path, *words: str) -> str | None:
    """What git answers; None if it fails."""
    command = [*GIT, "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command,
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


def _lies_in(path: Path, folder: str) -> bool:
    return path != Path(folder) and path.is_relative_to(folder)


# -- in an attempt ----------------------------------------------------------------------------------------------------


def add_command(repository: Repository, work: Path, sha: str) -> tuple[str, ...]:
    """Make the worktree ``work`` of the commit, without a branch: tracking branches would share a lock file."""
    words = ("worktree", "add", "--quiet", "--detach", "--", str(work), sha)
    return (*GIT, *_NO_LFS, f"--git-dir={repository.common}", *words)


def prune_command(common: str) -> tuple[str, ...]:
    """Forget the worktrees whose folders are gone."""
    return (*GIT, f"--git-dir={common}", "worktree", "prune")


def patch_command(sha: str, patch: Path) -> tuple[str, ...]:
    """See `PATCH_SCRIPT`; for the environment of `worktree_environment`."""
    return ("sh", "-c", PATCH_SCRIPT, "patch", sha, str(patch), *GIT, *_NO_LFS)


def ref_command(name: str, message: str) -> tuple[str, ...]:
    """Make a commit of what `patch_command` found and let ``name`` stand for it."""
    return ("sh", "-c", REF_SCRIPT, "ref", name, message, *GIT)


def ref_of_patch_command(base: str, patch: Path, name: str, message: str) -> tuple[str, ...]:
    """See `REF_OF_PATCH_SCRIPT`; for `bare_environment`."""
    return ("sh", "-c", REF_OF_PATCH_SCRIPT, "ref", base, str(patch), name, message, *GIT, *_NO_LFS)


def remove_command(work: Path, common: str | None) -> tuple[str, ...]:
    """See `REMOVE_SCRIPT`; ``common`` None for a folder that is no worktree."""
    git = () if common is None else (*GIT, f"--git-dir={common}")
    return ("sh", "-c", REMOVE_SCRIPT, "remove", str(work), *git)


def admin_folder(work: Path) -> Path:
    """Where git keeps what it knows of the worktree; to be read before an agent can change it. Raises `OSError`."""
    line = (work / ".git").read_text(encoding="utf-8", errors="surrogateescape")
    return Path(line.removeprefix("gitdir:").strip())


def worktree_environment(admin: Path, work: Path, index: Path) -> dict[str, str]:
    """For commands on a worktree that don't believe what its own ``.git`` says, nor touch its index."""
    where = {"GIT_DIR": str(admin), "GIT_WORK_TREE": str(work), "GIT_INDEX_FILE": str(index)}
    return git_environment({**where, **_OURS})


def bare_environment(repository: Repository, index: Path) -> dict[str, str]:
    """For commands on a repository that touch neither its files nor its index."""
    return git_environment({"GIT_DIR": repository.common, "GIT_INDEX_FILE": str(index), **_OURS})


def count_changes(numstat: bytes) -> Changes:
    """The sums of ``git diff --numstat -z``; binary files have no lines."""
    files = insertions = deletions = 0
    for entry in numstat.split(b"\0"):
        added, _, rest = entry.partition(b"\t")
        removed, tab, _ = rest.partition(b"\t")
        if tab:
            files += 1
            insertions += int(added) if added.isdigit() else 0
            deletions += int(removed) if removed.isdigit() else 0
    return Changes(files=files, insertions=insertions, deletions=deletions)
