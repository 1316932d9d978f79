"""The job file: one JSON object a line, all of it checked before anything starts.

What can be judged without looking at the disk is judged here; the rest in `supervisor.batch.plan`. Source: the batch
contract, "Job file".
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast, get_args

import msgspec

from protocol.agent_spec import Trust
from supervisor.batch.core.words import Isolation

MAX_LINE_BYTES = 1024 * 1024
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_PRICES = "there are no prices yet, so no limit in money"


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shell command that decides whether a complete turn was good: its exit code has to be 0.

    ``timeout_s`` is in seconds.
    """

    cmd: str
    timeout_s: float = 600.0


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its line says it. ``line`` counts from 1, ``index`` counts the jobs from 0; None: not said.

    ``metadata`` is the JSON that stood there.
    """

    line: int
    index: int
    id: str
    prompt: str | None = None
    prompt_file: str | None = None
    cwd: str | None = None
    isolation: Isolation | None = None
    base: str | None = None
    agent: str | None = None
    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    trust: Trust | None = None
    max_iterations: int | None = None
    max_context_tokens: int | None = None
    timeout_s: float | None = None
    retries: int | None = None
    max_tokens_total: int | None = None
    priority: float = 0.0
    env: dict[str, str] = {}  # msgspec copies it
    check: Check | None = None
    tags: tuple[str, ...] = ()
    metadata: msgspec.Raw = msgspec.Raw(b"null")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a line."""

    line: int
    field: str
    reason: str

    def told(self, file: str) -> str:
        """``FILE:LINE: FIELD: reason``."""
        return f"{file}:{self.line}: {self.field}: {self.reason}"


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a file, in order, and all of its faults."""

    jobs: tuple[JobLine, ...]
    faults: tuple[Fault, ...]


def parse_job_file(content: bytes) -> JobFile:
    """Read and check ``content``; never raises."""
    jobs: list[JobLine] = []
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    for number, line in _lines(content):
        reader = _LineReader(number, line)
        job = reader.read(len(jobs), seen)
        faults += reader.faults
        if job is None:
            continue
        if job.id in seen:
            faults.append(Fault(line=number, field="id", reason=f"{job.id!r} is the id of line {seen[job.id]} too"))
        seen.setdefault(job.id, number)
        jobs.append(job)
    return JobFile(jobs=tuple(jobs), faults=tuple(faults))


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(content.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), start=1):
        if line.strip():
            yield number, line.strip()


Value = TypeVar("Value")


class _LineReader:
    """Reads one line. A field that is wrong is a fault and counts as not said, so that all faults are found."""

    def __init__(self, number: int, line: bytes) -> None:
        self._number = number
        self._line = line
        self._fields: Mapping[str, msgspec.Raw] = {}
        self.faults: list[Fault] = []

    def read(self, index: int, taken: Mapping[str, int]) -> JobLine | None:
        """The job; None for a line that is no object."""
        if len(self._line) > MAX_LINE_BYTES:
            self._fault("json", f"the line is longer than {MAX_LINE_BYTES} bytes")
            return None
        try:
            self._fields = msgspec.json.decode(self._line, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._fault("json", f"no JSON object: {error}")
            return None
        self._refuse_unknown()
        prompt, prompt_file = self._one_prompt()
        return JobLine(
            line=self._number,
            index=index,
            id=self._id() or made_up_id(self._fields, taken),
            prompt=prompt,
            prompt_file=prompt_file,
            cwd=self._text("cwd"),
            isolation=cast("Isolation | None", self._choice("isolation", get_args(Isolation))),
            base=self._text("base"),
            agent=self._text("agent"),
            model=self._text("model"),
            provider=self._text("provider"),
            base_url=self._text("base_url"),
            trust=cast("Trust | None", self._choice("trust", get_args(Trust))),
            max_iterations=self._get("max_iterations", int, _at_least_one),
            max_context_tokens=self._get("max_context_tokens", int, _at_least_one),
            timeout_s=self._get("timeout_s", float, _over_zero),
            retries=self._get("retries", int, _not_negative),
            max_tokens_total=self._get("max_tokens_total", int, _at_least_one),
            priority=self._get("priority", float, _finite) or 0.0,
            env=self._get("env", dict[str, str], _environment) or {},
            check=self._get("check", Check, _check),
            tags=tuple(self._get("tags", list[str]) or ()),
            metadata=self._metadata(),
        )

    def _refuse_unknown(self) -> None:
        for field in self._fields:
            if field == "max_cost_usd":
                self._fault(field, _NO_PRICES)
            elif field not in _KNOWN_FIELDS and not field.startswith("x_"):
                self._fault(field, "there is no such field; names that start with x_ are yours")

    def _id(self) -> str | None:
        if "id" in self._fields and "custom_id" in self._fields:
            self._fault("id", "custom_id is another name for it: give one of them")
        field = "id" if "id" in self._fields else "custom_id"
        return self._get(field, str, _job_id)

    def _one_prompt(self) -> tuple[str | None, str | None]:
        prompt, prompt_file = self._get("prompt", str, _not_blank), self._text("prompt_file")
        given = [field for field in ("prompt", "prompt_file") if field in self._fields]
        if not given:
            self._fault("prompt", "it is missing; give prompt or prompt_file")
        elif len(given) > 1:
            self._fault("prompt", "there is a prompt_file too: give one of them")
        return prompt, prompt_file

    def _metadata(self) -> msgspec.Raw:
        if self._get("metadata", dict[str, msgspec.Raw]) is None:
            return msgspec.Raw(b"null")
        return msgspec.Raw(bytes(self._fields["metadata"]))

    def _choice(self, field: str, words: tuple[str, ...]) -> str | None:
        return self._get(field, str, lambda word: "" if word in words else f"one of {', '.join(words)}, not {word!r}")

    def _text(self, field: str) -> str | None:
        return self._get(field, str, _not_blank)

    def _get(self, field: str, kind: type[Value], fault_in: Callable[[Value], str] | None = None) -> Value | None:
        raw = self._fields.get(field)
        if raw is None:
            return None
        try:
            value = msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._fault(field, str(error))
            return None
        if fault_in is not None and (reason := fault_in(value)):
            self._fault(field, reason)
            return None
        return value

    def _fault(self, field: str, reason: str) -> None:
        self.faults.append(Fault(line=self._number, field=field, reason=reason))


_KNOWN_FIELDS = {field.name for field in msgspec.structs.fields(JobLine)} - {"line", "index"} | {"custom_id"}


def made_up_id(fields: Mapping[str, msgspec.Raw], taken: Mapping[str, int]) -> str:
    """An id that follows from what the line says, so that neither order nor other lines matter.

    The same content again gets ``-2``, ``-3`` behind it.
    """
    said = {name: msgspec.json.decode(raw) for name, raw in fields.items() if not name.startswith("x_")}
    digest = hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()
    made = f"j-{digest[:12]}"
    number = 1
    while (made if number == 1 else f"{made}-{number}") in taken:
        number += 1
    return made if number == 1 else f"{made}-{number}"


def _job_id(text: str) -> str:
    return "" if _JOB_ID.fullmatch(text) else "letters, digits, '.', '_' and '-', 128 at most, the first no sign"


def _not_blank(text: str) -> str:
    if "\0" in text:
        return "it holds a NUL character"
    return "" if text.strip() else "it is empty"


def _at_least_one(number: int) -> str:
    return "" if number >= 1 else f"at least 1, not {number}"


def _not_negative(number: int) -> str:
    return "" if number >= 0 else f"at least 0, not {number}"


def _finite(number: float) -> str:
    return "" if math.isfinite(number) else "it is not finite"


def _over_zero(number: float) -> str:
    return "" if 0 < number < math.inf else f"more than 0, not {number:g}"


def _environment(variables: dict[str, str]) -> str:
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            return f"{name!r} is no name of a variable"
        if "\0" in value:
            return f"the value of {name} holds a NUL character"
    return ""


def _check(check: Check) -> str:
    return _not_blank(check.cmd) or _over_zero(check.timeout_s)
