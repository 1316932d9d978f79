"""The import law, held over the syntax tree of every module of the three packages.

- ``protocol`` imports the standard library and msgspec only (``frame_stream``, the adapter to trio, may import trio).
- ``workers`` and ``supervisor`` import ``protocol`` and never each other, not even by a name in a string.
- httpx is imported in one module.
- A pure module (`PURE`) imports nothing that knows the time, chance or the world outside, neither itself nor through
  another module of ours: time and chance are its arguments.
- A package's ``__init__`` is a docstring only, so that importing one module never imports its neighbours. Two of them
  (`PUBLIC_FACES`) also name what of their own package is a fixed interface, and do nothing else.
- No module directly in ``supervisor/`` has a name that PyPI's supervisord uses: both install into ``supervisor/``.

Imports count wherever they stand: in a function, under ``TYPE_CHECKING``, or as ``import_module("name")``.

    python -m scripts.import_law [ROOT]      prints the breaches, one a line; exit 1 where there are any
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


def _names(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


MAY_IMPORT = {
    "protocol": {"protocol"},
    "supervisor": {"supervisor", "protocol"},
    "workers": {"workers", "protocol"},
}
THIRD_PARTY = {
    "protocol": {"msgspec"},
    "supervisor": {"msgspec", "trio", "trio_websocket"},
    "workers": {"msgspec", "trio", "pathspec"},
}
THIRD_PARTY_OF_ONE = {
    "protocol/frame_stream.py": {"trio"},
    "workers/providers/http_transport.py": {"httpx"},
    "workers/tools/page_program.py": {"bs4", "markdownify"},
    "supervisor/sinks/terminal.py": {"rich"},
    "supervisor/batch/live_block.py": {"rich"},
    "supervisor/batch/remote/ray_api.py": {"ray"},
}
PURE = (
    "*/core/*.py",
    "workers/providers/sse.py",
    "workers/providers/chat_*.py",
    "workers/providers/retry_after.py",
    "workers/providers/scenario_match.py",
    "workers/acp/jsonrpc.py",
    "workers/acp/session.py",
    "workers/acp/translate.py",
)
IMPURE = _names(
    # The law's own list, then other doors to the same world.
    "trio httpx subprocess socket time random os",
    "asyncio concurrent fcntl glob http importlib multiprocessing secrets select selectors shutil signal sqlite3 ssl",
    "tempfile threading trio_websocket urllib.request uuid",
)
PUBLIC_FACES = ("workers/acp/__init__.py", "workers/sandbox/__init__.py")
WALL_CLOCK_CALLS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}
SUPERVISORD_NAMES = _names(
    "childutils compat confecho datatypes dispatchers events http http_client loggers medusa options pidproxy poller",
    "process rpcinterface scripts skel socket_manager states supervisorctl supervisord templating tests ui web xmlrpc",
)


@dataclass(frozen=True, order=True)
class Breach:
    """A place that breaks the law. ``path`` is relative to the root, with slashes; ``line`` counts from 1."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Import:
    """One imported name, absolute and dotted; ``from a import b`` names both ``a`` and ``a.b``."""

    name: str
    line: int

    def is_of(self, module: str) -> bool:
        return self.name == module or self.name.startswith(module + ".")


@dataclass(frozen=True)
class Module:
    """One parsed file: ``name`` is its dotted name, ``package`` the first part of it."""

    path: str
    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_pure(self) -> bool:
        return not self.path.endswith("__init__.py") and any(fnmatch(self.path, pattern) for pattern in PURE)


def breaches(root: Path) -> list[Breach]:
    """All breaches below ``root``, the folder that holds the three packages, sorted by place."""
    modules: dict[str, Module] = {}
    found: set[Breach] = set()
    for package in MAY_IMPORT:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            try:
                module = parse(path, file.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError) as error:
                found.add(Breach(path, getattr(error, "lineno", None) or 1, f"can't be parsed: {error}"))
                continue
            modules[module.name] = module
    for module in modules.values():
        found.update(breaches_of(module))
        if module.is_pure:
            found.update(_breaches_of_purity(module, modules))
    return sorted(found)


def parse(path: str, source: str) -> Module:
    """The module at ``path`` (relative to the root); raises SyntaxError or ValueError."""
    tree = ast.parse(source, path)
    parts = path.removesuffix(".py").split("/")
    enclosing = parts[:-1]
    if parts[-1] == "__init__":
        parts = enclosing
    return Module(path, ".".join(parts), tree, tuple(_imports(tree, enclosing)))


def breaches_of(module: Module) -> Iterator[Breach]:
    """What a module breaks by itself, whatever the others hold."""
    for imported in module.imports:
        message = _refusal(module, imported)
        if message:
            yield Breach(module.path, imported.line, message)
    yield from _names_in_strings(module)
    if module.path.endswith("/__init__.py"):
        yield from _more_than_a_docstring(module)
    folder, _, name = module.name.rpartition(".")
    if folder == "supervisor" and name in SUPERVISORD_NAMES:
        yield Breach(module.path, 1, f"supervisord installs supervisor/{name} too: choose another name")


def _refusal(module: Module, imported: Import) -> str | None:
    top = imported.name.partition(".")[0]
    if top in sys.stdlib_module_names or top in MAY_IMPORT[module.package]:
        return None
    if top in THIRD_PARTY[module.package] | THIRD_PARTY_OF_ONE.get(module.path, set()):
        return None
    for path, names in THIRD_PARTY_OF_ONE.items():
        if top in names and path.startswith(module.package + "/"):
            return f"{module.package} may import {top} in {path} alone"
    return f"{module.package} may not import {top}"


def _imports(tree: ast.Module, enclosing: list[str]) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            above = enclosing[: len(enclosing) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield Import(source, node.lineno)
            for alias in node.names:
                yield Import(f"{source}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and _called_name(node.func) in {"import_module", "__import__"}:
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno)


def _called_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _names_in_strings(module: Module) -> Iterator[Breach]:
    """An entry like ``"workers.agent:main"`` imports as well as a statement does, once somebody resolves it."""
    others = "|".join(sorted(set(MAY_IMPORT) - MAY_IMPORT[module.package]))
    if module.package == "protocol":  # the names of the workers' entries are part of the contract
        return
    entry = re.compile(rf"(?:{others})(?:\.\w+)+(?::\w+)?")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and entry.fullmatch(node.value):
            yield Breach(module.path, node.lineno, f"{module.package} may not name {node.value}")


def _more_than_a_docstring(module: Module) -> Iterator[Breach]:
    for position, node in enumerate(module.tree.body):
        is_docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring:
            continue
        if module.path not in PUBLIC_FACES:
            yield Breach(module.path, node.lineno, "a package's __init__ is a docstring only")
            return
        if not _names_the_interface(node, module.name):
            yield Breach(module.path, node.lineno, f"{module.path} only re-exports names of its own package")
            return


def _names_the_interface(node: ast.stmt, package: str) -> bool:
    """``from package.module import Name``, or the list of these names."""
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").startswith(package + ".")
    return isinstance(node, ast.Assign) and [_called_name(target) for target in node.targets] == ["__all__"]


def _breaches_of_purity(module: Module, modules: dict[str, Module]) -> Iterator[Breach]:
    for imported in module.imports:
        chain = _way_to_the_world(imported, modules, frozenset())
        if chain:
            by_way = f", by way of {', '.join(chain[:-1])}" if chain[1:] else ""
            yield Breach(module.path, imported.line, f"a pure module may not import {chain[-1]}{by_way}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = _called_name(node.func.value)
            if (owner, node.func.attr) in WALL_CLOCK_CALLS:
                message = f"a pure module may not read the clock: {owner}.{node.func.attr}"
                yield Breach(module.path, node.lineno, message)


def _way_to_the_world(imported: Import, modules: dict[str, Module], seen: frozenset[str]) -> tuple[str, ...]:
    """The names from an import to the first impure module that it leads to; empty where it leads to none."""
    for impure in IMPURE:
        if imported.is_of(impure):
            return (impure,)
    through = modules.get(imported.name)
    # Another pure module answers for itself.
    if through is None or through.is_pure or through.name in seen:
        return ()
    for further in through.imports:
        chain = _way_to_the_world(further, modules, seen | {through.name})
        if chain:
            return (through.name, *chain)
    return ()


def main(arguments: list[str]) -> int:
    """Print the breaches below the folder given, or the checkout; 1 where there are any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = breaches(root)
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
