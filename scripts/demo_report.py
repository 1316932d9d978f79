"""Runs the demo's one command, shows what comes of it, and checks that what it shows is true.

Standard library only: this is also an example of a client of the stream.

    python -m scripts.demo_report FOLDER CORRAL

FOLDER holds the project to mend as ``durations``; it gets a ``home`` besides, so that the demo leaves nothing in yours.
Ends with 1, and a sentence for each fault, if anything did not come out as it should.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.demo_processes import ProcessWatch, left_behind

ORIGINAL = Path(__file__).resolve().parent / "demo_project" / "project"
SCENARIO = ORIGINAL.parent / "scenario.json"
PROMPT = "The tests of this project fail. Find out why and mend it."
SECONDS = 120
COUNTS = ("api_calls", "prompt_tokens", "completion_tokens")


@dataclass
class Run:
    """What the stream said. Agents are known by the id of the call that started them, the main agent by ""."""

    names: dict[str, str] = field(default_factory=lambda: {"": "main"})
    pids: dict[str, int] = field(default_factory=dict[str, int])
    arguments: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])


def main(folder: Path, corral: str) -> int:
    """Run, show, check."""
    project = folder / "durations"
    command = [corral, "-p", PROMPT, "--project-root", str(project), "--output-format", "stream-json"]
    scripted = [*command, "--provider", "scripted", "--script", str(SCENARIO)]
    home = {"XDG_STATE_HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "home")}
    run = Run()
    process = subprocess.Popen(scripted, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environment(home))
    with ProcessWatch(process.pid, SECONDS) as watch:
        try:
            for text in show_lines(process, run):
                print(text, flush=True)
        finally:
            process.wait()
    faults = [] if process.returncode == 0 else [f"corral ended with {process.returncode}, not with 0"]
    faults += show_change(project, home)
    faults += show_agents(run, watch, process.pid) if run.summary else ["the stream has no run_summary"]
    faults += show_leftovers(watch, project)
    show_commands(project, home, scripted, [*command, "--provider", "lmstudio", "--model", "MODEL"])
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _environment(home: dict[str, str]) -> dict[str, str]:
    """Ours, without settings of corral, and with the interpreter that runs this as the agents' ``python3``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    return kept | home | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def show_lines(process: subprocess.Popen[bytes], run: Run) -> Iterator[str]:
    """Read the stream to its end and tell a person what happens, a sentence for each event worth one."""
    assert process.stdout is not None
    texts: dict[str, str] = {}
    for raw in process.stdout:
        line = json.loads(raw)
        agent = line.get("parent_id", "")
        if line["type"] == "text_delta":
            texts[agent] = texts.get(agent, "") + line["text"]
            continue
        if texts.get(agent):
            yield _told(run, agent, texts.pop(agent).strip())
        told = take_line(line, agent, run)
        if told:
            yield _told(run, agent, told)


def take_line(line: dict[str, Any], agent: str, run: Run) -> str:
    """Keep what the report needs of one line; what there is to tell of it, or nothing."""
    kind = line["type"]
    if kind == "sub_agent_start":
        run.names[agent] = f"{line['agent_name']} ({agent})"
        return f"starts: {line['prompt']}"
    if kind == "sub_agent_end":
        return f"ends: {line['outcome']} after {line['elapsed_ms']} ms"
    if kind == "tool_output_line":
        found = re.fullmatch(r"pid (\d+)", line["line"])
        if found:
            run.pids[agent] = int(found[1])
    if kind == "tool_call_start":
        run.arguments[agent, line["id"]] = str(next(iter(line["args"].values()), ""))
    if kind == "tool_call_result" and line["name"] != "InvokeAgent":
        call = f"{line['name']} {run.arguments.get((agent, line['id']), '')}"
        return f"{call[:45]}: {line['outcome']}, {_gist(line['output'])}"
    if kind == "turn_end" and line["reason"]["kind"] != "complete":
        return f"{line['reason']['kind']}: {line['reason'].get('message', '')}"
    if kind == "run_summary":
        run.summary = line
    return ""


def _told(run: Run, agent: str, text: str) -> str:
    return f"  {run.names.get(agent, agent):18}{text}"


def _gist(output: str) -> str:
    """One line of an output: a verdict of unittest where there is one, else the first."""
    lines = [line for line in output.splitlines() if line.strip()]
    verdicts = [line for line in lines if re.match(r"OK|FAILED \(", line)]
    return (verdicts or lines or ["no output"])[0].strip()[:60]


def show_change(project: Path, home: dict[str, str]) -> list[str]:
    """The diff, and the tests once more, run from here."""
    print("\nWhat changed:")
    changed: list[str] = []
    for before in sorted(ORIGINAL.glob("*.py")):
        old, new = before.read_text(), (project / before.name).read_text()
        diff = difflib.unified_diff(
            old.splitlines(), new.splitlines(), f"a/{before.name}", f"b/{before.name}", lineterm=""
        )
        shown = [f"  {line}" for line in diff]
        if shown:
            changed.append(before.name)
            print("\n".join(shown))
    tests = subprocess.run(
        [sys.executable, "-B", "-m", "unittest"], cwd=project, env=_environment(home), capture_output=True, text=True
    )
    print(f"  The tests, run once more from here: {_gist(tests.stderr)}")
    faults = (
        [] if changed == ["durations.py"] else [f"durations.py was to change, not {', '.join(changed) or 'nothing'}"]
    )
    return faults + ([] if tests.returncode == 0 else ["the tests of the project still fail"])


def show_agents(run: Run, watch: ProcessWatch, supervisor: int) -> list[str]:
    """A process and a usage for each agent, and their sum."""
    workers = watch.workers()
    # The explore agents can run no command that would tell theirs: they are the workers that are left.
    unnamed = sorted(workers - set(run.pids.values()))
    print(f"\nWho did it (processes besides corral's own, which was {supervisor}):")
    print(f"  {'agent':18}{'process':>10}{'model calls':>14}{'prompt tokens':>16}{'reply tokens':>15}")
    sums: dict[str, int] = dict.fromkeys(COUNTS, 0)
    agents: list[dict[str, Any]] = run.summary["agents"]
    shown: list[int] = []
    for agent in agents:
        call = agent["parent_id"] or ""
        pid = run.pids.get(call) or (unnamed.pop(0) if unnamed else 0)
        shown.append(pid)
        own = own_usage(agent, agents)
        print(_row(run.names[call], str(pid), own))
        sums = {name: sums[name] + own[name] for name in COUNTS}
    print(_row("together", "", sums))
    print(_row("the run", "", run.summary["usage"]))
    print(f"  At one moment {watch.most_at_once(workers)} agents were at work, each in a process of its own.")
    return _faults_of_agents(run, shown, unnamed, sums, watch.most_at_once(workers))


def own_usage(agent: dict[str, Any], agents: list[dict[str, Any]]) -> dict[str, int]:
    """What the agent used itself: its total without its children's."""
    children = [each for each in agents if each["parent_agent_id"] == agent["agent_id"]]
    return {name: agent["usage"][name] - sum(child["usage"][name] for child in children) for name in COUNTS}


def _row(name: str, pid: str, usage: dict[str, int]) -> str:
    calls, prompt, completion = (usage[name] for name in COUNTS)
    return f"  {name:18}{pid:>10}{calls:>14}{prompt:>16}{completion:>15}"


def _faults_of_agents(run: Run, pids: list[int], unnamed: list[int], sums: dict[str, int], at_once: int) -> list[str]:
    faults: list[str] = []
    usage = run.summary["usage"]
    by_agent = run.summary["usage_by_agent"].values()
    if any(sums[name] != usage[name] or sum(each[name] for each in by_agent) != usage[name] for name in COUNTS):
        faults.append("the agents' usage does not add up to the run's")
    if len(pids) != 5 or len(set(pids)) != 5 or 0 in pids or unnamed:
        faults.append(f"5 agents were to have a process each; there were {pids} and also {unnamed}")
    if at_once < 4:
        faults.append(f"the main agent and three sub-agents were to be alive at once, not {at_once}")
    if not run.summary["success"] or not re.search(r"all \d+ tests pass", run.summary["response"]):
        faults.append(f"the run did not come to its good end: {run.summary['error'] or run.summary['response']}")
    return faults


def show_leftovers(watch: ProcessWatch, project: Path) -> list[str]:
    """Whether any process of the run is still there, the one that an agent left running included."""
    left = left_behind(watch.seen, project)
    print(f"\nProcesses seen during the run: {len(watch.seen)}. Left behind: {len(left) or 'none'}.")
    return [f"process {pid} was left behind" for pid in left]


def show_commands(project: Path, home: dict[str, str], scripted: list[str], real: list[str]) -> None:
    """What was run, ready to be run again."""
    copy = shlex.join(["cp", "-R", f"{ORIGINAL}/.", str(project)])
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in home.items())
    print(f"\nThe command:\n  {variables} \\\n  {shlex.join(scripted)}")
    print(f"\nThe same with a real model, here one of LM Studio's:\n  mkdir -p {shlex.quote(str(project))} && {copy}")
    print(f"  {shlex.join(real)}")


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
