"""`sumpter record` starts this: runs a script as Python would, and records its model's profile.

Arguments: the output, iterations, warm-up, a name or nothing, then the script's path, or -m and a
module, and its arguments. The model is the first module of PyTorch that is called in training mode;
without one, the profile is made from the rounds that the script begins. PyTorch is imported by the
script alone: it need not be installed, and other frameworks may not bear it in their process.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sumpter._core import membership
from sumpter._errors import ProfileError
from sumpter.profiles import save
from sumpter_lab.profiles import by_rounds

if TYPE_CHECKING:
    from sumpter_lab.profiles.record import Recorder

FAILURE = 1

# Where PyTorch registers what is called before every module.
_HOOKS = "torch.nn.modules.module"


class _AtImport(MetaPathFinder):
    """Calls back once a module has been imported, or at once if it has been already."""

    def __init__(self, name: str, then: Callable[[ModuleType], object]) -> None:
        self._name, self._then = name, then
        if name in sys.modules:
            then(sys.modules[name])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the module as Python does, with a loader that calls back."""
        if fullname != self._name:
            return None
        self.close()
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def close(self) -> None:
        """Waits no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Waiting:
    """Puts a recorder on the first module of PyTorch that trains, if the script imports that."""

    def __init__(self, output: str, iterations: int, warmup: int, name: str | None) -> None:
        self._arguments = {"output": output, "iterations": iterations, "name": name}
        # The call in which the model shows up is not seen from its beginning.
        self._arguments["warmup"] = max(0, warmup - 1)
        self.recorder: Recorder | None = None
        self._hook: Any = None
        self._import = _AtImport(_HOOKS, self._install)

    def _install(self, hooks: ModuleType) -> None:
        self._hook = hooks.register_module_forward_pre_hook(self._called)

    def _called(self, module: Any, args: tuple) -> None:
        import torch

        trains = module.training and torch.is_grad_enabled()
        if trains and any(parameter.requires_grad for parameter in module.parameters()):
            from sumpter_lab.profiles.record import Recorder

            self._hook.remove()
            self.recorder = Recorder(module, **self._arguments)

    def close(self) -> None:
        """Removes every hook, whether or not a module has trained."""
        self._import.close()
        if self._hook is not None:
            self._hook.remove()
        if self.recorder is not None:
            self.recorder.close()


def main(arguments: Sequence[str]) -> int:
    """Runs the script and returns the exit code."""
    output, iterations, warmup, name, *command = arguments
    waiting = _Waiting(output, int(iterations), int(warmup), name or None)
    with tempfile.TemporaryDirectory(prefix="sumpter-") as folder:
        timeline = Path(folder) / "timeline.json"
        membership.preset({"timeline": str(timeline)})
        try:
            code = _run(command)
        finally:
            waiting.close()
            # Which completes the timeline, if the script has not.
            membership.shutdown()
            membership.preset({})
        try:
            if waiting.recorder is None:
                called = name or Path(command[1] if command[0] == "-m" else command[0]).stem
                save(by_rounds.profile_of(timeline, called, int(iterations), int(warmup)), output)
            else:
                # It has been written, unless that raises.
                _ = waiting.recorder.profile
        except ProfileError as error:
            print(f"sumpter record: {output} was not written: {error}", file=sys.stderr)
            return code or FAILURE
    print(f"sumpter record: wrote {output}", file=sys.stderr)
    return code


def _run(command: Sequence[str]) -> int:
    """What `python COMMAND` would do, in this process; its exit code."""
    try:
        if command[0] == "-m":
            sys.argv = list(command[1:])
            sys.path.insert(0, "")
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(command)
            sys.path.insert(0, str(Path(command[0]).resolve().parent))
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return FAILURE
        return end.code or 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
