"""The front door: the command ``corral``.

Nothing heavy is imported before it is known to be needed: ``--help`` and ``--version`` open without trio, msgspec and
httpx.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.early_fork import EarlyForkServer
    from supervisor.errors import SupervisorError
    from supervisor.flags import FlagValues

INTERRUPTED = 130
STDOUT_CLOSED = 141

COMMANDS: dict[str, str] = {
    "acp": "supervisor.acp_agent.command:acp",
    "batch": "supervisor.batch.command:batch",
    "config": "supervisor.commands.config:config",
    "kill": "supervisor.live.commands:kill",
    "ps": "supervisor.live.commands:ps",
    "sessions": "supervisor.commands.sessions:sessions",
    "tail": "supervisor.live.commands:tail",
    "trust": "supervisor.commands.trust:trust",
}
"""Commands beside the one-shot run: first word -> ``module:function``.

The function takes the arguments after that word and returns the exit code.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (by default the process's own) and return the exit code.

    What is wrong with the command line or the configuration becomes one sentence on standard error and exit code 2;
    nothing is written to standard output then. A SIGINT before the run has begun ends the process with 130.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    _fill_missing_descriptors()
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _fill_missing_descriptors() -> None:
    """Where a standard descriptor is closed, put one in its place that takes and gives nothing.

    Else the next socket gets its number, and whoever then means standard error writes into it. What is written to a
    closed standard output still fails.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number, which is this one
            if descriptor == 2:
                sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays for good


def _dispatch(arguments: list[str]) -> int:
    let_python_interrupt = _end_at_once_on_interrupt()
    from supervisor.errors import SupervisorError

    try:
        gc.disable()  # what is imported stays: to look for garbage in it is a tenth of the time
        run = _prepare(arguments)
        gc.freeze()
        gc.enable()
        let_python_interrupt()
        return run()
    except SupervisorError as error:
        _complain(error)
        return error.exit_code
    finally:
        gc.enable()
        let_python_interrupt()


def _prepare(arguments: list[str]) -> Callable[[], int]:
    """What is to be run, with all that it needs imported and read, but nothing begun."""
    if arguments and arguments[0] in COMMANDS:
        return _load(COMMANDS[arguments[0]], arguments[1:])
    from supervisor.flags import one_shot_parser, parse_one_shot

    values = parse_one_shot(arguments, os.environ)
    if values.is_given("help"):
        return lambda: _print(one_shot_parser().format_help())
    if values.is_given("version"):
        from protocol.version import installed_version

        return lambda: _print(f"corral {installed_version()}\n")
    from supervisor.early_fork import fork_early

    # With two CPUs two processes import at once: this one what a run needs, the other what its workers need.
    early = fork_early() if values.text("spawn") != "fresh" and _cpus() > 1 else None
    try:
        return _prepare_run(values, early)
    except BaseException:
        if early is not None:
            early.close()
        raise


def _prepare_run(values: FlagValues, early: EarlyForkServer | None) -> Callable[[], int]:
    from supervisor.config import read_settings

    settings = read_settings(values, os.environ, sys.stdin)
    from protocol.key_scrubbing import take_out_of_environment
    from protocol.process_tree import forbid_inspection

    if early is not None:
        early.begin(conceal=settings.environ)
    take_out_of_environment(settings.environ)
    forbid_inspection()
    from supervisor.early_fork import fork_early
    from supervisor.spawn import choose_spawner  # imports trio: what is wrong was told before

    if early is None and settings.spawn != "fresh":
        early = fork_early()
    from supervisor.oneshot import run_one_shot

    spawner = choose_spawner(settings.spawn, early, ends_orphans=True)

    def run() -> int:
        try:
            return run_one_shot(settings, spawner)
        finally:
            spawner.close()

    return run


def _cpus() -> int:
    """How many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no such call
        return os.cpu_count() or 1


def _load(target: str, arguments: list[str]) -> Callable[[], int]:
    from importlib import import_module

    module, _, function = target.partition(":")
    command: Callable[[list[str]], int] = getattr(import_module(module), function)
    return lambda: command(arguments)


def _end_at_once_on_interrupt() -> Callable[[], None]:
    """Make SIGINT end the process with 130 on the spot; the function returned gives it back to Python.

    While modules are imported a KeyboardInterrupt may come up anywhere, in a weak reference's callback too, where it
    only prints a traceback. An ignored SIGINT (a shell's background job) stays ignored.
    """

    def end(_signal_number: int, _frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    def give_back() -> None:
        if signal.getsignal(signal.SIGINT) is end:  # then this is the main thread: it was set here
            signal.signal(signal.SIGINT, signal.default_int_handler)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_main_thread():
        signal.signal(signal.SIGINT, end)
    return give_back


def _is_main_thread() -> bool:
    from threading import current_thread, main_thread

    return current_thread() is main_thread()


def _print(text: str) -> int:
    """Write to standard output; a closed one is no reason for a traceback, now or when the interpreter ends."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, AttributeError):  # there is no stream at all where it was closed from the start
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return STDOUT_CLOSED
    return 0


def _complain(error: SupervisorError) -> None:
    """A line on standard error, one for each note before it and each hint below, safe for a terminal."""
    from supervisor.terminal_text import printable

    sentence = f"{error}{':' if error.hints else ''}"
    lines = [*(f"corral: {each}" for each in (*error.notes, sentence)), *(f"    {hint}" for hint in error.hints)]
    try:
        sys.stderr.write("".join(printable(line).replace("\n", " ") + "\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it; the exit code still says it
