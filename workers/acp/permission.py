"""Questions for consent, and how a run that nobody watches answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from workers.acp.jsonrpc import RequestId, result_line


class PermissionOption(msgspec.Struct, frozen=True):
    """One of the answers that an agent offers; ``kind`` is ``allow_always``, ``allow_once`` or a rejecting one."""

    option_id: str
    kind: str
    name: str


def offered_options(params: Mapping[str, object]) -> tuple[PermissionOption, ...]:
    """The options of a ``session/request_permission``, in their order; malformed ones are left out."""
    given = params.get("options")
    if not isinstance(given, list):
        return ()
    options: list[PermissionOption] = []
    for item in cast("list[object]", given):
        fields = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        option_id, kind, name = fields.get("optionId"), fields.get("kind"), fields.get("name")
        if isinstance(option_id, str) and isinstance(kind, str):
            options.append(PermissionOption(option_id, kind, name if isinstance(name, str) else option_id))
    return tuple(options)


def headless_choice(options: Sequence[PermissionOption]) -> str | None:
    """The id of the first option that allows always, else of the first that allows once, else None.

    Never a rejecting option: to say no is to answer that the question was cancelled. Source: the contract of external
    agents, "Permission".
    """
    for kind in ("allow_always", "allow_once"):
        for option in options:
            if option.kind == kind:
                return option.option_id
    return None


def outcome(option_id: str | None) -> dict[str, object]:
    """The result of a permission request; None stands for ``cancelled``."""
    if option_id is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


class OpenQuestions:
    """The questions that were passed on and have no answer yet, under keys of ours: ids of the agent's may repeat."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[RequestId, tuple[PermissionOption, ...]]] = {}
        self._last_key = 0

    def open_keys(self) -> tuple[int, ...]:
        """The keys of the open ones, oldest first."""
        return tuple(self._open)

    def add(self, asked: RequestId, options: tuple[PermissionOption, ...]) -> int:
        """Keep the question that came under the id ``asked``; returns its key."""
        self._last_key += 1
        self._open[self._last_key] = (asked, options)
        return self._last_key

    def answer(self, key: int, option_id: str | None) -> bytes | None:
        """The line that answers question ``key``, which is closed then; None where it is not open.

        What was not offered is answered as ``cancelled``.
        """
        question = self._open.pop(key, None)
        if question is None:
            return None
        asked, options = question
        is_offered = any(option.option_id == option_id for option in options)
        return result_line(asked, outcome(option_id if is_offered else None))
