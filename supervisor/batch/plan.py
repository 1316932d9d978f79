"""From the job file and the flags to jobs that can run; everything is checked before anything starts."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisor.agents import AgentCatalog
from supervisor.batch import git
from supervisor.batch.core.job_file import Fault, JobFile, JobLine, parse_job_file
from supervisor.batch.core.spec import JobSpec, digests, shard_of
from supervisor.batch.core.words import Isolation
from supervisor.batch.errors import JobFileInvalid
from supervisor.batch.flags import FROM_STDIN, BatchOptions
from supervisor.batch.git import Repository
from supervisor.config import OneShotSettings, PlainSettings, read_personal_values, read_plain_settings, read_settings
from supervisor.errors import AgentFileInvalid, ModelUnavailable, UnknownAgent, WrongUsage
from supervisor.flags import FlagValues
from supervisor.prompt import MAX_PROMPT_BYTES, joined_prompt
from supervisor.regular_file import read_regular_file

MAX_FILE_BYTES = 1024 * 1024 * 1024


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is ready to run.

    ``source`` is the real path of its ``cwd``; ``settings`` are those of a one-shot run there, its prompt included.
    ``isolation`` is never ``auto``. ``base`` is the commit of a worktree of ``repository``. Jobs of the same ``lane``
    run one after the other. ``timeout`` is in seconds.
    """

    line: JobLine
    settings: OneShotSettings
    spec: JobSpec
    spec_sha: str
    source: Path
    isolation: Isolation
    repository: Repository | None
    base: str | None
    lane: str | None
    retries: int
    timeout: float | None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.line.id


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of this shard, in the order of the file. ``bases`` are the commits that names stand for.

    ``file_sha`` is the SHA-256 of the job file, ``plain`` are settings that hold for every job, ``notes``
    sentences for a person.
    """

    jobs: tuple[PlannedJob, ...]
    bases: dict[tuple[str, str], str]
    file_sha: str
    plain: PlainSettings
    notes: tuple[str, ...]


def read_job_file(name: str) -> tuple[bytes, JobFile]:
    """The job file and its jobs; raises `WrongUsage`, or `JobFileInvalid` with all faults."""
    try:
        if name == FROM_STDIN:
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise WrongUsage(f"there are more than {MAX_FILE_BYTES} bytes of jobs on standard input")
        else:
            content = read_regular_file(Path(name), MAX_FILE_BYTES)
    except OSError as error:
        raise WrongUsage(f"the job file {name} can't be read: {error.strerror or error}") from None
    found = parse_job_file(content)
    if found.faults:
        raise faulty(name, found.faults)
    if not found.jobs:
        raise WrongUsage(f"the job file {name} holds no job")
    return content, found


def faulty(name: str, faults: tuple[Fault, ...] | list[Fault]) -> JobFileInvalid:
    """The error for a job file with ``faults``."""
    ordered = sorted(faults, key=lambda fault: fault.line)
    count = len(ordered)
    message = f"the job file has {count} fault{'' if count == 1 else 's'}; nothing was started"
    return JobFileInvalid(message, tuple(fault.told(name) for fault in ordered))


def make_plan(
    options: BatchOptions, one_shot: Mapping[str, str], environ: Mapping[str, str], bases: Mapping[tuple[str, str], str]
) -> Plan:
    """Check everything and plan the jobs; raises `WrongUsage`. ``bases`` are known from earlier runs of the batch."""
    content, found = read_job_file(options.jobs_file)
    planner = Planner(options, one_shot, environ, bases)
    part, parts = options.shard
    jobs = [planner.plan(line) for line in found.jobs if shard_of(line.id, parts) == part]
    if planner.faults:
        raise faulty(options.jobs_file, planner.faults)
    return Plan(
        jobs=tuple(job for job in jobs if job is not None),
        bases=planner.bases,
        file_sha=hashlib.sha256(content).hexdigest(),
        plain=planner.plain,
        notes=planner.notes(),
    )


class _Wrong(Exception):
    """A field that can't be used."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class Planner:
    """Plans one job after the other; ``faults`` are those that it met, ``bases`` the commits it has looked up."""

    def __init__(
        self,
        options: BatchOptions,
        one_shot: Mapping[str, str],
        environ: Mapping[str, str],
        bases: Mapping[tuple[str, str], str],
    ) -> None:
        """Raises `WrongUsage` where the flags alone are wrong."""
        self.faults: list[Fault] = []
        self.bases = dict(bases)
        self._options = options
        self._one_shot = one_shot
        self._environ = environ
        is_file = options.jobs_file != FROM_STDIN
        self._folder = Path(options.jobs_file).absolute().parent if is_file else Path.cwd()
        self._settings: dict[tuple[str | int | None, ...], OneShotSettings | _Wrong] = {}
        self._repositories: dict[Path, Repository | None] = {}
        self._notes: dict[str, None] = {}
        self._looked_at: set[tuple[str, str]] = set()
        person = read_personal_values(FlagValues(one_shot, (), environ), environ)
        self.plain = read_plain_settings(person.values)
        self._project_root = person.project_root

    def plan(self, line: JobLine) -> PlannedJob | None:
        """The job of a line; None where that is a fault."""
        try:
            return self._plan(line)
        except _Wrong as error:
            self.faults.append(Fault(line=line.line, field=error.field, reason=str(error)))
            return None

    def notes(self) -> tuple[str, ...]:
        """Sentences for a person, each once."""
        return tuple(self._notes)

    def _plan(self, line: JobLine) -> PlannedJob:
        source = self._source(line)
        settings = self._settings_for(line, source)
        given = self._prompt(line)
        try:
            prompt, notes = joined_prompt(given, None, (source,))
        except WrongUsage as error:
            raise _Wrong("prompt", str(error)) from None
        for note in (*settings.notes, *notes):
            self._notes[note] = None
        isolation, repository, base = self._isolation(line, source, settings)
        limits = settings.limits
        if line.max_tokens_total is not None:
            limits = msgspec.structs.replace(limits, max_tokens_total=line.max_tokens_total)
        settings = msgspec.structs.replace(
            settings,
            prompt=prompt,
            limits=limits,
            catalog=_with_iterations(settings.catalog, settings.agent_name, line.max_iterations),
            session_id=None,
            environment=line.env,
            restart_main=False,
        )
        spec = _spec(line, given, source, isolation, base, settings)
        only_reads = settings.trust == "plan" and line.check is None
        return PlannedJob(
            line=line,
            settings=settings,
            spec=spec,
            spec_sha=spec.sha256(),
            source=source,
            isolation=isolation,
            repository=repository,
            base=base,
            lane=str(source) if isolation == "none" and not only_reads else None,
            retries=self._options.retries if line.retries is None else line.retries,
            timeout=line.timeout_s or settings.timeout,
        )

    def _source(self, line: JobLine) -> Path:
        if line.cwd is None:
            return self._project_root
        try:
            source = (self._folder / line.cwd).resolve(strict=True)
        except (OSError, RuntimeError):
            raise _Wrong("cwd", f"there is no folder {line.cwd}") from None
        if not source.is_dir():
            raise _Wrong("cwd", f"{line.cwd} is no folder")
        return source

    def _prompt(self, line: JobLine) -> str:
        if line.prompt is not None:
            return line.prompt
        assert line.prompt_file is not None
        try:
            text = read_regular_file(self._folder / line.prompt_file, MAX_PROMPT_BYTES).decode()
        except OSError as error:
            raise _Wrong("prompt_file", f"{line.prompt_file} can't be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise _Wrong("prompt_file", f"{line.prompt_file} is no UTF-8 text") from None
        if not text.strip():
            raise _Wrong("prompt_file", f"{line.prompt_file} is empty")
        return text

    # -- settings -----------------------------------------------------------------------------------------------------

    def _settings_for(self, line: JobLine, source: Path) -> OneShotSettings:
        own: dict[str, str | int | None] = {
            "agent": line.agent,
            "model": line.model,
            "provider": line.provider,
            "base-url": line.base_url,
            "trust": line.trust,
            "max-context-tokens": line.max_context_tokens,
        }
        key = (str(source), *own.values())
        if key not in self._settings:
            flags = {name: str(value) for name, value in own.items() if value is not None}
            try:
                self._settings[key] = self._read({**flags, "project-root": str(source)})
            except (UnknownAgent, AgentFileInvalid) as error:
                self._settings[key] = _Wrong("agent", str(error))
            except ModelUnavailable as error:
                self._settings[key] = _Wrong("provider" if line.provider or line.base_url else "model", str(error))
            except WrongUsage as error:
                self._settings[key] = _Wrong("cwd", str(error))
        found = self._settings[key]
        if isinstance(found, _Wrong):
            raise found
        return found

    def _read(self, own: Mapping[str, str]) -> OneShotSettings:
        # Its prompt is put in later: there has to be one, or standard input would be looked at.
        given = {**self._one_shot, **own, "prompt": "job"}
        return read_settings(FlagValues(given, (), self._environ), self._environ, None)

    # -- isolation ----------------------------------------------------------------------------------------------------

    def _isolation(
        self, line: JobLine, source: Path, settings: OneShotSettings
    ) -> tuple[Isolation, Repository | None, str | None]:
        wanted = line.isolation or self._options.isolation
        if wanted == "auto" and settings.trust == "plan":
            wanted = "none"
        if wanted in ("none", "copy"):
            return wanted, None, None
        field = "isolation" if line.isolation else "cwd"
        repository = self._repository(source)
        if repository is None:
            if wanted == "auto":
                return "copy", None, None
            raise _Wrong(field, f"{source} is in no git repository, so there can be no worktree of it")
        name = line.base or self._options.base
        base = self._base(repository, name)
        if base is None:
            if wanted == "auto" and line.base is None and name == "HEAD":
                return "copy", None, None  # nothing was committed yet
            raise _Wrong("base", f"{name!r} is no commit of {repository.top}")
        if not git.has_folder(repository, base, source):
            if wanted == "auto":
                return "copy", None, None
            raise _Wrong(field, f"{source} is not in the commit {base[:12]}")
        self._look_at(repository, base)
        return "worktree", repository, base

    def _repository(self, source: Path) -> Repository | None:
        if source not in self._repositories:
            self._repositories[source] = git.find_repository(source)
        return self._repositories[source]

    def _base(self, repository: Repository, name: str) -> str | None:
        """What ``name`` stands for: the same for the whole life of the batch."""
        key = (repository.common, name)
        if key not in self.bases and (found := git.resolve_commit(repository, name)) is not None:
            self.bases[key] = found
        return self.bases.get(key)

    def _look_at(self, repository: Repository, base: str) -> None:
        if (repository.top, base) in self._looked_at:
            return
        is_new = all(top != repository.top for top, _ in self._looked_at)
        self._looked_at.add((repository.top, base))
        if lacking := git.unfilled(repository, base):
            self._notes[f"worktrees of {repository.top} are made without {' and '.join(lacking)}"] = None
        ours = (self._options.folder.resolve(), Path(os.path.realpath(self._options.jobs_file)))
        if is_new and git.is_dirty(repository, ours):
            told = f"{repository.top} has changes that are not committed: no worktree of it has them"
            if self._options.require_clean:
                raise WrongUsage(told)
            self._notes[told] = None


def _with_iterations(catalog: AgentCatalog, name: str, most: int | None) -> AgentCatalog:
    if most is None:
        return catalog
    specs = catalog.specs()
    specs[name] = msgspec.structs.replace(specs[name], max_iterations=most)
    return AgentCatalog(specs, catalog.notes)


def _spec(
    line: JobLine, prompt: str, source: Path, isolation: Isolation, base: str | None, settings: OneShotSettings
) -> JobSpec:
    return JobSpec(
        prompt=prompt,
        cwd=str(source),
        isolation=isolation,
        base=base,
        agent=settings.agent_name,
        model=settings.model.model,
        provider=settings.model.provider,
        base_url=settings.model.base_url,
        trust=settings.trust,
        max_iterations=line.max_iterations,
        env=digests(line.env),
        check=line.check,
    )
