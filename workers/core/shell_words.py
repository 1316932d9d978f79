"""Reads a shell command far enough to see which programs it calls with which words. Pure.

It knows quotes, escapes, comments, redirections, here-documents, substitutions and subshells. It expands nothing: a
word that depends on what an expansion gives is marked. What it can't make sense of it passes over; it never fails.
Source: POSIX.1-2017, XCU 2 (shell command language).
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

Joint: TypeAlias = Literal["", ";", "&&", "||", "|", "&"]

_DEEPEST = 8
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(?:>>|>\||>&|<>|<<<|<<-?|<&|>(?!\()|<(?!\())|&>>?")
_WRITING = (">", ">>", ">|", "<>", "&>", "&>>", ">&")
_EXPANDED = frozenset("*?[")
_ENDS_WORD = frozenset(" \t\n;&|()<>")


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A word. ``text`` is without its quotes; ``raw`` is as written; ``is_literal`` is false where it is expanded."""

    text: str
    raw: str
    is_literal: bool


class SimpleCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A program with its arguments. ``writes`` are the targets of its output redirections.

    ``joint`` is what stands between it and the command before it. ``scope`` tells subshells apart: it begins with that
    of the shell around it.
    """

    words: tuple[Word, ...]
    writes: tuple[Word, ...]
    joint: Joint
    scope: tuple[int, ...]


def commands_in(text: str) -> list[SimpleCommand]:
    """All commands in ``text``, in order, those inside of substitutions before the command that they are part of."""
    reader = _Reader(text, depth=0, scope=())
    reader.read()
    return reader.commands


class _Reader:
    def __init__(self, text: str, depth: int, scope: tuple[int, ...]) -> None:
        self._text = text.replace("\\\n", "")
        self._at = 0
        self._depth = depth
        self._scope = scope
        self._scopes = 0
        self._joint: Joint = ""
        self._words: list[Word] = []
        self._writes: list[Word] = []
        self._ends_of_documents: list[str] = []
        self.commands: list[SimpleCommand] = []

    def read(self) -> None:
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t":
                self._at += 1
            elif character == "#":
                self._at = self._until("\n", self._at)
            elif found := _REDIRECTION.match(self._text, self._at):
                self._redirect(found)
            elif found := _OPERATOR.match(self._text, self._at):
                self._operate(found[0])
                self._at = max(self._at, found.end())
            else:
                self._words.append(self._word())
        self._finish("")

    def _finish(self, joint: Joint) -> None:
        if self._words or self._writes:
            command = SimpleCommand(
                words=tuple(self._words), writes=tuple(self._writes), joint=self._joint, scope=self._scope
            )
            self.commands.append(command)
            self._joint = ";"
        self._words, self._writes = [], []
        if joint:
            self._joint = joint

    def _operate(self, operator: str) -> None:
        joints: dict[str, Joint] = {"&&": "&&", "||": "||", "|": "|", "|&": "|", "&": "&"}
        # A line that ends with an operator goes on.
        self._finish(joints.get(operator, "" if operator == "\n" and not self._words else ";"))
        if operator == "(":
            self._scopes += 1
            self._scope = (*self._scope, self._scopes)
        elif operator == ")":
            self._scope = self._scope[:-1] if len(self._scope) > 0 else ()
        elif operator == "\n":
            self._at += 1
            while self._ends_of_documents:
                self._skip_document(self._ends_of_documents.pop(0))

    def _redirect(self, found: re.Match[str]) -> None:
        self._at = found.end()
        operator = found[0].lstrip("0123456789")
        operator = operator[operator.find("}") + 1 :]
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        if self._at >= len(self._text) or self._text[self._at] in "\n;|&)":
            return
        target = self._word()
        if operator in ("<<", "<<-"):
            self._ends_of_documents.append(target.text)
        elif operator in _WRITING and not (operator == ">&" and re.fullmatch(r"\d+-?|-", target.text)):
            self._writes.append(target)

    def _skip_document(self, end: str) -> None:
        while self._at < len(self._text):
            line_end = self._until("\n", self._at)
            line = self._text[self._at : line_end]
            self._at = line_end + 1
            if line.lstrip("\t") == end:
                return

    def _word(self) -> Word:
        start = self._at
        text = ""
        is_literal = True
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in "<>" and self._text.startswith("(", self._at + 1):
                self._at += 1
                self._nested_parentheses()
                is_literal = False
            elif character in _ENDS_WORD:
                break
            else:
                piece, piece_is_literal = self._piece(character)
                text += piece
                is_literal = is_literal and piece_is_literal
        if self._at == start:  # nothing that a word may begin with: pass over it
            self._at += 1
        return Word(text=text, raw=self._text[start : self._at], is_literal=is_literal)

    def _piece(self, character: str) -> tuple[str, bool]:
        """The next piece of a word without its quotes, and whether it stays as it is."""
        if character == "\\":
            self._at += 2
            return self._text[self._at - 1 : self._at], True
        if character == "'":
            end = self._until("'", self._at + 1)
            piece = self._text[self._at + 1 : end]
            self._at = end + 1
            return piece, True
        if character == '"':
            return self._double_quoted()
        if character in "$`":
            return self._expansion(), False
        self._at += 1
        return character, character not in _EXPANDED

    def _double_quoted(self) -> tuple[str, bool]:
        self._at += 1
        text = ""
        is_literal = True
        while self._at < len(self._text) and self._text[self._at] != '"':
            character = self._text[self._at]
            if character in "$`":
                text += self._expansion()
                is_literal = False
            elif character == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\"):
                text += self._text[self._at + 1]
                self._at += 2
            else:
                text += character
                self._at += 1
        self._at += 1
        return text, is_literal

    def _expansion(self) -> str:
        """Passes over a ``$...`` or a backquoted command, whose commands are read too, and gives it as written."""
        start = self._at
        if self._text[start] == "`":
            end = self._until("`", start + 1)
            self._nested(self._text[start + 1 : end])
            self._at = end + 1
        elif self._text.startswith("$(", start):
            self._at += 1
            self._nested_parentheses()
        elif self._text.startswith("${", start):
            self._at = self._until("}", start) + 1
        elif self._text.startswith("$'", start):
            self._at = self._until("'", start + 2) + 1
        else:
            self._at += 1
        return self._text[start : self._at]

    def _nested_parentheses(self) -> None:
        """At an opening parenthesis: reads what is inside as commands and goes behind the closing one."""
        depth = 0
        end = self._at
        while end < len(self._text):
            character = self._text[end]
            if character == "\\":
                end += 1
            elif character == "'":
                end = self._until("'", end + 1)
            elif character in "()":
                depth += 1 if character == "(" else -1
                if depth == 0:
                    break
            end += 1
        self._nested(self._text[self._at + 1 : end])
        self._at = end + 1

    def _nested(self, text: str) -> None:
        if self._depth == _DEEPEST:
            return
        self._scopes += 1
        reader = _Reader(text, self._depth + 1, (*self._scope, self._scopes))
        reader.read()
        self.commands += reader.commands

    def _until(self, character: str, start: int) -> int:
        found = self._text.find(character, start)
        return len(self._text) if found < 0 else found
