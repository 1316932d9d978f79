"""Folders and commits, packed here and unpacked there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
import trio

from supervisor.batch.commands import Commands
from supervisor.batch.flags import parse_batch
from supervisor.batch.isolation import Isolation, SetupFailed
from supervisor.batch.plan import PlannedJob, make_plan
from supervisor.batch.remote.grounds import PARCELS
from supervisor.batch.remote.order import Order, decode_order, encode_order
from supervisor.batch.remote.parcels import PIECE_BYTES, Parcel, Parcels
from supervisor.batch.remote.unpacking import settle
from supervisor.spawn import FreshSpawner

BOUND = 60.0


def git(folder: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, check=True, capture_output=True, text=True, timeout=BOUND
    ).stdout


def planned(source: Path, out: Path, isolation: str) -> PlannedJob:
    """A job that works in ``source``."""
    scenario, jobs = out / "scenario.json", out / "jobs.jsonl"
    scenario.write_text('{"version": 1, "agents": {"main": [{"reply": {"text": "x"}}]}}')
    line = {"id": "a", "prompt": "p", "cwd": str(source), "isolation": isolation, "metadata": {"n": [1]}}
    jobs.write_bytes(msgspec.json.encode(line) + b"\n")
    words = [str(jobs), "--provider", "scripted", "--script", str(scenario), "--project-root", str(source)]
    environ = {"HOME": str(out), "XDG_CONFIG_HOME": str(out), "XDG_STATE_HOME": str(out)}
    command_line = parse_batch(words, environ)
    (job,) = make_plan(command_line.options, command_line.one_shot, environ, {}).jobs
    return job


async def unpack(job: PlannedJob, parcel: Parcel | None, pieces: list[bytes], machine: Path) -> Path:
    """Bring the parcel to ``machine`` and make the job's work folder of it; twice, as for two attempts."""
    assert parcel is not None
    (machine / PARCELS).mkdir(parents=True)
    (machine / PARCELS / f"{parcel.name.key}.packed").write_bytes(b"".join(pieces))
    job = decode_order(encode_order(Order(job=job, n=1, parcel=parcel.name, copy_max=1 << 30))).job
    spawner = FreshSpawner()
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spawner.run)
            commands = Commands(spawner)
            roots = list[Path]()
            for name in ("one", "two"):
                settled = await settle(job, parcel.name, machine, commands)
                (machine / name).mkdir()
                place = await Isolation(commands, machine / name, copy_max=1 << 30).prepare(settled, machine / name)
                roots.append(place.root)
            nursery.cancel_scope.cancel()
    return roots[1]


async def test_a_folder_comes_as_it_was_but_for_the_batch_s_own(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "source" / "deep" / "out"
    out.mkdir(parents=True)
    (out / "results.jsonl").touch()
    (source / "deep" / "file").write_text("text")
    (source / "deep" / "file").chmod(0o750)
    (source / "link").symlink_to("nowhere")
    (source / "large").write_bytes(os.urandom(PIECE_BYTES + 5))
    pieces: list[bytes] = []
    job = planned(source, tmp_path, "copy")
    parcels = Parcels(lambda data: pieces.append(data), out, copy_max=1 << 30)
    parcel = await parcels.of(job)
    assert parcel is await parcels.of(job)
    assert len(pieces) == 2
    root = await unpack(job, parcel, pieces, tmp_path / "machine")
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == [
        "deep",
        "deep/file",
        "large",
        "link",
    ]
    assert (root / "large").read_bytes() == (source / "large").read_bytes()
    assert (root / "deep" / "file").stat().st_mode & 0o777 == 0o750
    assert (root / "link").readlink() == Path("nowhere")


async def test_a_folder_that_is_too_large_is_not_packed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(bytes(5000))
    with pytest.raises(SetupFailed) as raised:
        await Parcels(len, tmp_path / "out", copy_max=4000).of(planned(source, tmp_path, "copy"))
    assert raised.value.end.reason == "copy_max"


async def test_the_job_of_a_folder_that_all_machines_have_needs_no_parcel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    assert await Parcels(len, tmp_path, copy_max=1).of(planned(source, tmp_path, "none")) is None


@pytest.mark.parametrize("depth", [None, 1])
async def test_a_commit_comes_with_its_history_also_out_of_a_shallow_clone(tmp_path: Path, depth: int | None) -> None:
    origin, source = tmp_path / "origin", tmp_path / "source"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    for number in range(3):
        (origin / "inside").mkdir(exist_ok=True)
        (origin / "inside" / "file").write_text(f"{number}\n")
        git(origin, "add", "-A")
        git(origin, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", f"commit {number}")
    words = [] if depth is None else [f"--depth={depth}"]
    git(tmp_path, "clone", "-q", *words, f"file://{origin}", str(source))
    git(source, "config", "user.name", "Somebody")
    git(source, "config", "remote.origin.url", "https://secret@host.invalid/")
    (source / ".git" / "info" / "exclude").write_text("ignored\n")
    pieces: list[bytes] = []
    job = planned(source / "inside", tmp_path, "worktree")
    parcel = await Parcels(lambda data: pieces.append(data), tmp_path, copy_max=1).of(job)
    root = await unpack(job, parcel, pieces, tmp_path / "machine")
    assert (root.name, (root / "file").read_text()) == ("inside", "2\n")
    assert len(git(root, "log", "--format=%s").splitlines()) == (depth or 3)
    (root.parent / "ignored").touch()
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "config", "user.name").strip() == "Somebody"
    assert "secret" not in git(root, "config", "--list")
    assert "secret" not in str(parcel)
    assert git(source, "for-each-ref", "refs/heads/base") == ""
    assert git(source, "status", "--porcelain") == ""
