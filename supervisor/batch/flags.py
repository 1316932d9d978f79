"""The command line of ``corral batch``: its own flags, and those of a one-shot run as defaults for every job."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias, cast, get_args

import msgspec

from supervisor.batch.core.halting import HaltRule, parse_halt_rule
from supervisor.batch.core.words import HaltWhen, Isolation, Keep, RetryClass
from supervisor.errors import WrongUsage
from supervisor.flags import FLAG_OF, ONE_SHOT_FLAGS, Flag, FlagValues

OnChanged: TypeAlias = Literal["refuse", "rerun", "keep"]
ProgressKind: TypeAlias = Literal["auto", "tty", "plain", "none"]

FROM_STDIN = "-"
MOST_SLOTS = 1024
_NOT_FOR_A_BATCH = frozenset({"prompt", "prompt-file", "session"})
_MONEY = ("budget-usd", "max-cost-usd")

BATCH_FLAGS: dict[str, tuple[Flag, ...]] = {
    "what runs": (
        Flag("out", "DIR", "folder of the ledger and all results (default: JOBS.jsonl.corral)"),
        Flag("jobs", "N", "jobs at once: a number, MIN-MAX, or auto (default)", "-j"),
        Flag("shard", "I/N", "only the jobs of part I of N (default: 1/1)"),
        Flag("rerun", "LIST", "drop these verdicts first: statuses or ids, separated by commas"),
        Flag("on-changed", "WHAT", "a known id with another spec: refuse (default), rerun or keep"),
        Flag("dry-run", "", "check everything, print the plan, start nothing"),
        Flag("backend", "NAME", "where the agents run: local (default) or ray[:ADDRESS]"),
        Flag("shared-fs", "", "with ray: all machines have the jobs' folders at the same paths"),
    ),
    "where a job works": (
        Flag("isolation", "MODE", "auto (default), none, copy or worktree"),
        Flag("base", "REF", "commit that worktrees are made of (default: HEAD)"),
        Flag("keep", "WHICH", "work folders that stay after the verdict: failed (default), all or none"),
        Flag("copy-max", "SIZE", "largest folder that is copied (default: 2G)"),
        Flag("require-clean", "", "refuse a repository with changes that are not committed"),
        Flag("ref", "", "also keep what a job did as the git ref refs/corral/BATCH/JOB"),
    ),
    "failures": (
        Flag("retries", "N", "extra attempts of each job (default: 1)"),
        Flag("retry-on", "LIST", "of crashed, transient, setup, timeout, check, failed (default: the first three)"),
        Flag("halt", "RULE", "never (default) or WHEN,WHY=N[%]: now or soon; fail, success or done"),
        Flag("breaker", "N", "halt when the first N verdicts are the same failure; 0 never (default: 5)"),
        Flag("rate-limit-patience", "S", "halt when rate limits let no call through for so long (default: 1800)"),
        Flag("no-fail", "", "verdicts do not change the exit code"),
    ),
    "limits": (
        Flag("timeout", "S", "wall time of one attempt, in seconds"),
        Flag("batch-timeout", "S", "wall time of the whole run, in seconds"),
        Flag("max-tokens-total", "N", "tokens of all jobs, all attempts and all runs of this batch together"),
        Flag("on-budget", "WHEN", "at that limit: soon (default; what runs may end) or now"),
        Flag("drain", "S", "after a first SIGINT or SIGTERM, what runs has so long to end (default: 10)"),
        Flag("budget-usd", "X", "refused: there are no prices yet"),
        Flag("max-cost-usd", "X", "refused: there are no prices yet"),
    ),
    "batch output": (
        Flag("include-events", "", "with stream-json: the lines of the agents too"),
        Flag("progress", "KIND", "on standard error: auto (default), tty, plain or none"),
        Flag("heartbeat", "S", "seconds between two lines of progress (default: 30)"),
    ),
}
"""The flags that only a batch has, or has in another sense, under the headings of its help."""

BATCH_FLAG_OF = {flag.name: flag for group in BATCH_FLAGS.values() for flag in group}

USAGE = """\
corral batch JOBS.jsonl|- [--out DIR] [options]
       corral batch status DIR [--json]
       corral batch merge DIR... --out DIR [--prefer ok|latest]"""
DESCRIPTION = """\
Run each line of JOBS.jsonl as a job of its own: a tree of agent processes in a folder of its own, with retries, limits
and a verdict. A ledger in DIR knows what is done: the same command again goes on where the last one was stopped."""
EPILOG = """\
exit codes: 0 every job is ok, 1 every job has a verdict but not all are ok, 2 wrong usage or job file,
3 stopped early, 4 DIR is in use, 5 storage failed, 129/130/143 a signal"""


class BatchValues(FlagValues):
    """What the command line says to the batch's own flags; no variable stands in for them."""

    def _sourced(self, name: str) -> tuple[str | None, str]:
        return self._given.get(name), f"--{name}"


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The batch's own settings. Times are in seconds, sizes in bytes.

    ``least_slots`` to ``slots`` jobs run at once. ``shard`` is part and number of parts. ``ray`` is the address of a
    Ray cluster that makes the attempts, empty: one that is started here for them; None: they are made here.
    """

    jobs_file: str
    folder: Path
    slots: int
    least_slots: int
    shard: tuple[int, int]
    rerun: tuple[str, ...]
    on_changed: OnChanged
    dry_run: bool
    isolation: Isolation
    base: str
    keep: Keep
    copy_max: int
    require_clean: bool
    ref: bool
    retries: int
    retry_on: frozenset[RetryClass]
    halt: HaltRule | None
    breaker: int
    patience: float
    no_fail: bool
    batch_timeout: float | None
    max_tokens_total: int | None
    on_budget: HaltWhen
    drain: float
    include_events: bool
    progress: ProgressKind
    heartbeat: float
    ray: str | None = None
    shared_fs: bool = False


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """What was given: the batch's options, and the flags of a one-shot run by name."""

    options: BatchOptions
    one_shot: dict[str, str]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message} (corral batch --help shows the options)")


def batch_parser() -> argparse.ArgumentParser:
    """The parser behind `parse_batch` and the text of ``--help``."""
    parser = _Parser(
        prog="corral batch",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    for heading, flags in {**BATCH_FLAGS, **_one_shot_groups()}.items():
        group = parser.add_argument_group(heading)
        for flag in flags:
            spellings = (flag.short, f"--{flag.name}") if flag.short else (f"--{flag.name}",)
            if flag.metavar:
                group.add_argument(*spellings, dest=flag.name, metavar=flag.metavar, help=flag.help.replace("%", "%%"))
            else:
                group.add_argument(*spellings, dest=flag.name, action="store_const", const="1", help=flag.help)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser


def _one_shot_groups() -> dict[str, tuple[Flag, ...]]:
    """The flags of a one-shot run that make sense for every job, but those the batch has itself."""
    left_out = _NOT_FOR_A_BATCH | BATCH_FLAG_OF.keys()
    groups = {
        f"every job: {heading}": tuple(flag for flag in flags if flag.name not in left_out)
        for heading, flags in ONE_SHOT_FLAGS.items()
    }
    return {heading: flags for heading, flags in groups.items() if flags}


def parse_batch(arguments: Sequence[str], environ: Mapping[str, str]) -> CommandLine:
    """Read the command line of a run; raises `WrongUsage`."""
    parsed, unknown = batch_parser().parse_known_intermixed_args(list(arguments))
    if unknown:
        raise WrongUsage(_unknown_option(unknown[0]))
    found: dict[str, str | list[str] | None] = vars(parsed)
    given = {name: value for name, value in found.items() if isinstance(value, str)}
    words = [word for value in found.values() if isinstance(value, list) for word in value]
    values = BatchValues({name: value for name, value in given.items() if name in BATCH_FLAG_OF}, words, environ)
    # --timeout bounds an attempt, as it bounds a one-shot run; --max-tokens-total means something else here.
    own = BATCH_FLAG_OF.keys() - {"timeout"}
    one_shot = {name: value for name, value in given.items() if name in FLAG_OF and name not in own}
    return CommandLine(options=_read_options(values), one_shot=one_shot)


def _read_options(values: BatchValues) -> BatchOptions:
    for name in _MONEY:
        if values.is_given(name):
            raise WrongUsage(f"--{name} can't be held: there is no table of prices yet")
    if len(values.words) != 1:
        raise WrongUsage("corral batch takes one job file, or - for standard input (corral batch --help says more)")
    least, slots = _read_slots(values.text("jobs") or "auto")
    drain, retries = values.number("drain", zero=True), values.whole_number("retries", least=0)
    breaker, patience = values.whole_number("breaker", least=0), values.number("rate-limit-patience")
    return BatchOptions(
        jobs_file=values.words[0],
        folder=_read_folder(values),
        slots=slots,
        least_slots=least,
        shard=_read_shard(values.text("shard") or "1/1"),
        rerun=_read_list(values.text("rerun") or ""),
        on_changed=cast("OnChanged", values.choice("on-changed", get_args(OnChanged), "refuse")),
        dry_run=values.switch("dry-run"),
        isolation=cast("Isolation", values.choice("isolation", get_args(Isolation), "auto")),
        base=values.text("base") or "HEAD",
        keep=cast("Keep", values.choice("keep", get_args(Keep), "failed")),
        copy_max=values.size("copy-max") or 2 << 30,
        require_clean=values.switch("require-clean"),
        ref=values.switch("ref"),
        retries=1 if retries is None else retries,
        retry_on=_read_retry_classes(values.text("retry-on")),
        halt=_read_halt(values.text("halt") or "never"),
        breaker=5 if breaker is None else breaker,
        patience=1800.0 if patience is None else patience,
        no_fail=values.switch("no-fail"),
        batch_timeout=values.number("batch-timeout"),
        max_tokens_total=values.whole_number("max-tokens-total"),
        on_budget=cast("HaltWhen", values.choice("on-budget", get_args(HaltWhen), "soon")),
        drain=10.0 if drain is None else drain,
        include_events=values.switch("include-events"),
        progress=cast("ProgressKind", values.choice("progress", get_args(ProgressKind), "auto")),
        heartbeat=values.number("heartbeat") or 30.0,
        ray=_read_backend(values.text("backend") or "local"),
        shared_fs=values.switch("shared-fs"),
    )


def _read_backend(text: str) -> str | None:
    """The address of a Ray cluster, empty for one of our own; None for no Ray."""
    name, colon, address = text.partition(":")
    if text == "local":
        return None
    if name != "ray" or (colon and not address):
        raise WrongUsage(f"--backend is local or ray[:ADDRESS], not {text!r}")
    if address.startswith("ray://"):
        raise WrongUsage(f"--backend {text}: start the batch on a machine of the cluster, with the address of its GCS")
    return address


def _read_folder(values: BatchValues) -> Path:
    out, jobs_file = values.text("out"), values.words[0]
    if out is None and jobs_file == FROM_STDIN:
        raise WrongUsage("jobs from standard input need --out DIR")
    try:
        return Path(out if out is not None else f"{jobs_file}.corral").absolute()
    except (OSError, ValueError) as error:
        raise WrongUsage(f"the folder {out} can't be used: {error}") from None


def _read_slots(text: str) -> tuple[int, int]:
    if text == "auto":
        return 1, min(32, 4 * (os.cpu_count() or 1))
    match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most <= MOST_SLOTS:
        raise WrongUsage(f"--jobs is a number, MIN-MAX or auto, {MOST_SLOTS} at most, not {text!r}")
    return least, most


def _read_shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= parts:
        raise WrongUsage(f"--shard is I/N with I from 1 to N, not {text!r}")
    return part, parts


def _read_retry_classes(text: str | None) -> frozenset[RetryClass]:
    if text is None:
        return frozenset({"crashed", "transient", "setup"})
    classes = _read_list(text)
    strange = [word for word in classes if word not in get_args(RetryClass)]
    if strange:
        raise WrongUsage(f"--retry-on takes {', '.join(get_args(RetryClass))}, not {strange[0]!r}")
    return frozenset(cast("RetryClass", word) for word in classes)


def _read_halt(text: str) -> HaltRule | None:
    try:
        return parse_halt_rule(text)
    except ValueError:
        raise WrongUsage(f"--halt is never or WHEN,WHY=N[%], such as soon,fail=10%, not {text!r}") from None


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _unknown_option(option: str) -> str:
    name = option.partition("=")[0]
    known = [f"--{flag}" for flag in (*BATCH_FLAG_OF, *FLAG_OF) if flag not in _NOT_FOR_A_BATCH]
    if name.lstrip("-") in _NOT_FOR_A_BATCH or name in ("-p", "-s"):
        return f"{name} is for one run: the jobs' prompts are in the job file"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "corral batch --help shows the options"
    return f"there is no option {name}; {hint}"
