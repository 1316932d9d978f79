"""What a shell command is refused for when nobody is there to be asked. Pure.

This is advice, no boundary: it names what is plain to see in the text of a command. A script, a variable, another
program can do all the same unseen, and only a sandbox keeps them from it. Source: the safety contract, rules 5 and 6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from workers.core.shell_words import SimpleCommand, Word, commands_in

_DEEPEST = 4
_KEYWORDS = frozenset(["if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time"])
_PREFIXES = frozenset(
    ["env", "command", "builtin", "exec", "nohup", "nice", "ionice", "timeout", "stdbuf", "setsid", "xargs", "unbuffer"]
)
_ELEVATING = frozenset(["sudo", "doas", "pkexec"])
_SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ksh"])
_COPYING = frozenset(["cp", "mv", "ln", "install"])
_GIT_OPTIONS_WITH_VALUE = frozenset(["-c", "--git-dir", "--work-tree", "--namespace"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_NUMBER = re.compile(r"[\d.]+[smhd]?|\{\}")
_FRESH_VARIABLE = re.compile(r"([A-Za-z_]\w*)=\"?(?:\$\(|`)\s*mktemp\s(?:[^)`]*\s)?-\w*d")
_VARIABLE = re.compile(r"\"?\$\{?([A-Za-z_]\w*)\}?\"?(?:/(?!.*\.\.)[^$`]*)?")
_HOME = re.compile(r"(?:~|\"?\$HOME\b\"?|\"?\$\{HOME\}\"?)(?:/(.*))?")
_OTHER_HOME = re.compile(r"~[a-z_][\w-]*(?:/.*)?")
_DEVICE = re.compile(r"/dev/(?:null|zero|full|tty|stdin|stdout|stderr|fd/\d+)|/proc/self/fd/\d+")


def advice_against(command: str, project_root: str) -> str | None:
    """What in ``command`` is refused, in a few words; None where nothing is seen.

    ``project_root`` is absolute and is the folder that the command begins in. Looked for are: `sudo`; `git push`;
    ``rm -r`` and ``git clean`` outside of a folder that this same command has just made; and writing outside of the
    project, by redirection or by one of cp, mv, ln, tee, dd, install.
    """
    return _Advice(project_root).of(command, 0)


class _Advice:
    """Follows a command from left to right: which folder it is in, which folders it has made."""

    def __init__(self, root: str) -> None:
        self._root = _folded(root)
        self._folders: dict[tuple[int, ...], str | None] = {(): self._root}
        self._fresh: set[str] = set()
        self._fresh_variables: set[str] = set()
        self._made: str | None = None
        self._scope: tuple[int, ...] = ()

    def of(self, text: str, depth: int) -> str | None:
        for command in commands_in(text):
            self._scope = command.scope
            reason = self._of_command(command, depth)
            if reason is not None:
                return reason
        return None

    def _of_command(self, command: SimpleCommand, depth: int) -> str | None:
        made, self._made = self._made, None
        if made is not None and command.joint == "&&":
            self._fresh.add(made)  # had it been there before, it would not have been made
        for target in command.writes:
            if self._is_outside(target):
                return f"it writes to {target.raw}, outside the project"
        for word in command.words:
            if found := _FRESH_VARIABLE.match(word.raw):
                self._fresh_variables.add(found[1])
        return self._of_words(_without_prefixes(command.words), depth)

    def _of_words(self, words: Sequence[Word], depth: int) -> str | None:
        if not words or depth > _DEEPEST:
            return None
        name = words[0].text.rpartition("/")[2]
        arguments = words[1:]
        if name in _ELEVATING:
            return f"it calls {name}"
        if name in _SHELLS or name == "eval":
            return self._of_shell(name, arguments, depth)
        if name == "find":
            return self._of_find(arguments, depth)
        if name == "git":
            return self._of_git(arguments)
        if name == "rm":
            return self._of_rm(arguments)
        if name in ("cd", "pushd", "mkdir"):
            self._follow(name, arguments)
            return None
        for target in _written_by(name, arguments):
            if self._is_outside(target):
                return f"{name} writes to {target.raw}, outside the project"
        return None

    # -- the commands -------------------------------------------------------------------------------------------------

    def _of_shell(self, name: str, arguments: Sequence[Word], depth: int) -> str | None:
        if name == "eval":
            return self.of(" ".join(word.text for word in arguments), depth + 1)
        texts = [word.text for word in arguments]
        flag = next((at for at, text in enumerate(texts) if re.fullmatch(r"-\w*c", text)), None)
        if flag is None or flag + 1 >= len(texts):
            return None
        scope = self._scope
        reason = self.of(texts[flag + 1], depth + 1)
        self._scope = scope
        return reason

    def _of_find(self, arguments: Sequence[Word], depth: int) -> str | None:
        for at, word in enumerate(arguments):
            if word.text in ("-exec", "-execdir", "-ok", "-okdir"):
                reason = self._of_words(_without_prefixes(arguments[at + 1 :]), depth + 1)
                if reason is not None:
                    return reason
        return None

    def _of_git(self, arguments: Sequence[Word]) -> str | None:
        folder = self._folder
        rest = list(arguments)
        while rest and rest[0].text.startswith("-"):
            option = rest.pop(0).text
            if option == "-C" and rest:
                folder = self._place(rest.pop(0))
            elif option in _GIT_OPTIONS_WITH_VALUE and rest:
                rest.pop(0)
        if not rest:
            return None
        options = {word.text for word in rest[1:] if word.text.startswith("-")}
        is_trial = any(option == "--dry-run" or re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*", option) for option in options)
        operands = _operands(rest[1:])
        if rest[0].text == "push" and not is_trial:
            return "it calls git push"
        if rest[0].text == "clean" and not is_trial and not self._is_fresh(folder):
            return "it calls git clean"
        if rest[0].text == "clone" and len(operands) == 2:
            self._made = self._place(operands[1])
        return None

    def _of_rm(self, arguments: Sequence[Word]) -> str | None:
        before_end = [word.text for word in arguments[: _end_of_options(arguments)]]
        if not any(re.fullmatch(r"-\w*[rR]\w*|--recursive", text) for text in before_end):
            return None
        targets = _operands(arguments)
        if targets and all(self._is_fresh_target(word) for word in targets):
            return None
        what = targets[0].raw if targets else "what it is given"
        return f"rm deletes {what} with all that is in it, which this same command has not just made"

    def _follow(self, name: str, arguments: Sequence[Word]) -> None:
        operands = _operands(arguments)
        if name == "mkdir":
            may_be_there = any(re.fullmatch(r"-\w*p\w*|--parents", word.text) for word in arguments)
            self._made = self._place(operands[0]) if len(operands) == 1 and not may_be_there else None
        else:
            self._folders[self._scope] = self._place(operands[0]) if len(operands) == 1 else None

    # -- places -------------------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> str | None:
        """The folder that the command runs in; None where that is not known."""
        scope = self._scope
        while scope not in self._folders:
            scope = scope[:-1]
        return self._folders[scope]

    def _place(self, word: Word) -> str | None:
        """The absolute path that ``word`` stands for, None where only running it would tell."""
        if not word.is_literal or word.raw.startswith("~"):
            return None
        if word.text.startswith("/"):
            return _folded(word.text)
        return None if self._folder is None else _folded(f"{self._folder}/{word.text}")

    def _is_outside(self, word: Word) -> bool:
        if home := _HOME.fullmatch(word.raw):
            return not self._may_be_home_of_project(home[1] or "")
        if _OTHER_HOME.fullmatch(word.raw):
            return True
        place = self._place(word)
        if place is None or _DEVICE.fullmatch(place) or self._is_fresh(place):
            return False
        return not _is_below(place, self._root)

    def _may_be_home_of_project(self, rest: str) -> bool:
        """Whether ``rest``, a path below a home that isn't known, may well begin with the end of the root's path."""
        parts = _folded(f"/{rest}").split("/")[1:]
        return any(self._root.endswith("/" + "/".join(parts[:length])) for length in range(1, len(parts) + 1))

    def _is_fresh_target(self, word: Word) -> bool:
        if found := _VARIABLE.fullmatch(word.raw):
            return found[1] in self._fresh_variables
        return self._is_fresh(self._place(word))

    def _is_fresh(self, place: str | None) -> bool:
        return place is not None and any(_is_below(place, folder) for folder in self._fresh)


def _without_prefixes(words: Sequence[Word]) -> Sequence[Word]:
    """``words`` from the name of the program on that is called in the end."""
    at = 0
    in_prefix = False
    while at < len(words):
        text = words[at].text
        if text in _KEYWORDS or _ASSIGNMENT.match(words[at].raw):
            pass
        elif text.rpartition("/")[2] in _PREFIXES:
            in_prefix = True
        elif not (in_prefix and (text.startswith("-") or _NUMBER.fullmatch(text))):
            break
        at += 1
    return words[at:]


def _written_by(name: str, arguments: Sequence[Word]) -> Sequence[Word]:
    """The arguments that the program writes to."""
    operands = _operands(arguments)
    if name == "tee":
        return operands
    if name == "dd":
        return [_behind(word, "of=") for word in arguments if word.raw.startswith("of=")]
    if name not in _COPYING:
        return []
    target = _target_folder(arguments)
    if target is not None:
        return [target, *operands] if name == "mv" else [target]
    if len(operands) < 2:
        return []
    return operands if name == "mv" else operands[-1:]  # what is moved is gone from where it was


def _target_folder(arguments: Sequence[Word]) -> Word | None:
    for at, word in enumerate(arguments):
        if word.text in ("-t", "--target-directory") and at + 1 < len(arguments):
            return arguments[at + 1]
        if word.raw.startswith("--target-directory="):
            return _behind(word, "--target-directory=")
    return None


def _behind(word: Word, beginning: str) -> Word:
    return Word(
        text=word.text.removeprefix(beginning), raw=word.raw.removeprefix(beginning), is_literal=word.is_literal
    )


def _operands(arguments: Sequence[Word]) -> list[Word]:
    end = _end_of_options(arguments)
    return [word for word in arguments[:end] if not word.text.startswith("-")] + list(arguments[end + 1 :])


def _end_of_options(arguments: Sequence[Word]) -> int:
    return next((at for at, word in enumerate(arguments) if word.text == "--"), len(arguments))


def _folded(path: str) -> str:
    """The absolute ``path`` without empty parts, ``.`` and ``..``."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _is_below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")
