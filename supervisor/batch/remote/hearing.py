"""What the process that makes an attempt elsewhere says, carried out: the batch's side of each frame."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from protocol.errors import HandshakeMismatch, ProtocolError
from protocol.frame_stream import FrameStream
from protocol.usage import Usage
from protocol.version import installed_version
from supervisor.batch.attempt_log import AttemptLog
from supervisor.batch.folder import sync_folder
from supervisor.batch.isolation import PATCH, Patch
from supervisor.batch.journal import Journal
from supervisor.batch.remote.core.calls import RemoteCalls
from supervisor.batch.remote.frames import (
    Beat,
    CallAnswered,
    CallAsked,
    CallDropped,
    CallFailed,
    CallGo,
    Here,
    LogLine,
    LogNote,
    Over,
    PatchPiece,
    RootProcess,
    SessionKnown,
    Told,
    UpFrame,
    Used,
)
from supervisor.batch.remote.order import decode_report
from supervisor.batch.remote.token import Token
from supervisor.batch.report import AttemptReport, Findings
from supervisor.core.endpoint_gate import CallKey
from supervisor.endpoints import SharedEndpoints


class Hearing:
    """Carries out the frames of one attempt; ``report`` is there once it has ended."""

    def __init__(
        self,
        token: Token,
        frames: FrameStream[UpFrame],
        *,
        folder: Path,
        journal: Journal,
        endpoints: SharedEndpoints,
        log: AttemptLog,
        findings: Findings,
        on_note: Callable[[str], None],
    ) -> None:
        """``folder`` is that of the attempt, ``findings`` get what becomes known."""
        self.report: AttemptReport | None = None
        self._token = token
        self._frames = frames
        self._journal = journal
        self._endpoints = endpoints
        self._member = endpoints.join()
        self._log = log
        self._findings = findings
        self._on_note = on_note
        self._calls = RemoteCalls()
        self._used = Usage()
        self._by_agent: dict[str, Usage] = {}
        self._uncertain = 0
        self._is_here = False
        self._patch = _PatchFile(folder / PATCH)

    def take(self, frame: UpFrame) -> None:
        """Carry out ``frame``; never blocks for long.

        Raises `ProtocolError` for what no process of ours says, `HandshakeMismatch` for one of another version,
        `OSError` where the patch can't be written.
        """
        if isinstance(frame, Here) is self._is_here:
            raise ProtocolError(f"{type(frame).__name__} came out of turn")
        try:
            self._carry_out(frame)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ProtocolError(str(error)) from None

    def _carry_out(self, frame: UpFrame) -> None:
        match frame:
            case LogLine(line=line):
                self._log.line(line)
            case LogNote(text=text):
                self._log.note(text)
            case CallAsked() | CallAnswered() | CallFailed() | CallDropped():
                self._take_call(frame)
            case Used(usage=usage, by_agent=by_agent, uncertain_calls=uncertain):
                self._calls.usage_arrived()
                self._used, self._by_agent, self._uncertain = usage, by_agent, uncertain
                self._tell_usage()
            case Beat():
                pass
            case Here():
                self._greet(frame)
            case SessionKnown(session_id=session_id):
                self._findings.note(session_id=session_id)
                self._journal.has_session(session_id)
            case RootProcess(pid=pid):
                self._journal.has_process(pid)
            case Told(text=text):
                self._on_note(text)
            case PatchPiece(data=data):
                self._patch.write(data)
            case Over(report=body):
                self._end(decode_report(body))

    def _greet(self, frame: Here) -> None:
        if frame.token != str(self._token):
            raise ProtocolError(f"a process for {frame.token} answers")
        if frame.version != installed_version():
            raise HandshakeMismatch(
                f"{frame.host} has corral {frame.version}, this machine {installed_version()}: install the same on both"
            )
        self._is_here = True
        self._findings.note(host=frame.host)

    # -- model calls --------------------------------------------------------------------------------------------------

    def _take_call(self, frame: CallAsked | CallAnswered | CallFailed | CallDropped) -> None:
        key = self._key(frame.call)
        match frame:
            case CallAsked(call=call, endpoint=endpoint):
                self._calls.ask(call)
                self._endpoints.ask(endpoint, key, partial(self._let_go, call))
            case CallAnswered(call=call):
                self._calls.answered(call)
                self._endpoints.clean(key)
            case CallFailed(call=call, limited=limited):
                self._calls.failed(call)
                (self._endpoints.limited if limited else self._endpoints.failed)(key)
            case CallDropped(call=call):
                self._calls.dropped(call)
                self._endpoints.leave(*key[:2])

    def _let_go(self, call: int) -> None:
        self._calls.go(call)
        self._tell_usage()  # if this runner dies now, the next one knows of the call
        self._frames.put(CallGo(call=call))

    def _key(self, call: int) -> CallKey:
        return self._member, f"call-{call}", call

    def _tell_usage(self) -> None:
        uncertain = self._uncertain + self._calls.uncertain
        self._findings.note(usage=self._used, usage_by_agent=self._by_agent, uncertain_calls=uncertain)
        self._journal.has_used(self._used, self._by_agent, uncertain)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self, report: AttemptReport) -> None:
        patch = None
        if report.patch is not None:
            path, digest = self._patch.seal()
            if digest != report.patch.sha256:
                raise ProtocolError("the patch did not come whole")
            patch = Patch(path=path, sha256=digest, changes=report.patch.changes)
        self._findings.note(
            exit_code=report.exit_code,
            signal=report.signal,
            response=report.response,
            usage=report.usage,
            usage_by_agent=report.usage_by_agent,
            uncertain_calls=report.uncertain_calls,
            check=report.check,
            patch=patch,
        )
        self.report = report

    def close(self) -> None:
        """The process is gone: its calls are nobody's any more."""
        for call in self._calls.unfinished:
            self._endpoints.leave(*self._key(call)[:2])
        self._patch.close()


class _PatchFile:
    """``patch.diff`` as it comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """The next bytes; raises `OSError`."""
        view = memoryview(data)
        descriptor = self._open()
        while view:
            view = view[os.write(descriptor, view) :]
        self._hash.update(data)

    def seal(self) -> tuple[Path, str]:
        """All of it is on the disk; its path and SHA-256. Raises `OSError`."""
        os.fsync(self._open())
        sync_folder(self._path.parent)
        return self._path, self._hash.hexdigest()

    def close(self) -> None:
        """Nothing more comes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o600)
        return self._descriptor
