"""What the tools may touch of the machine, and how they are held to that: paths, files, processes."""

from workers.sandbox.local_sandbox import LocalSandbox
from workers.sandbox.sandbox import Sandbox

__all__ = ["LocalSandbox", "Sandbox"]
