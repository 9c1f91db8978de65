"""What SkyPilot and dstack themselves make of files; run by a Python that has both.

python own_parsers.py skypilot FILE   the job group, or an error
python own_parsers.py dstack FILE     the task, or an error
python own_parsers.py sky WORDS...    whether the command line `sky` takes these words
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def skypilot(file: str) -> dict[str, object]:
    from sky.utils import dag_utils

    group = dag_utils.load_job_group_from_yaml(
        file, secrets_overrides=[("SUMPTER_TOKEN", "s" * 16)]
    )
    return {
        "primary": group.primary_tasks,
        "connected": group.inter_connection,
        "nodes": {task.name: task.num_nodes for task in group.tasks},
        "gpus": {
            task.name: sum((one.accelerators or {}).values())
            for task in group.tasks
            for one in task.resources
        },
        "scripts": {task.name: task.run for task in group.tasks},
        "environments": {task.name: task.envs for task in group.tasks},
        "secrets": {task.name: list(task.secrets) for task in group.tasks},
    }


def dstack(file: str) -> dict[str, object]:
    import yaml
    from dstack._internal.core.models.configurations import parse_apply_configuration
    from dstack._internal.core.models.envs import EnvSentinel

    task = parse_apply_configuration(yaml.safe_load(Path(file).read_text()))
    environment = {name: task.env[name] for name in task.env}
    secrets = [name for name, text in environment.items() if isinstance(text, EnvSentinel)]
    given = {name: text for name, text in environment.items() if name not in secrets}
    names = [group.name for group in task.node_groups]
    return {
        "primary": names[:1] if task.stop_criteria.value == "master-done" else names,
        "connected": True,
        "nodes": {group.name: group.nodes for group in task.node_groups},
        "gpus": {group.name: group.resources.gpu.count.max for group in task.node_groups},
        "scripts": {group.name: " && ".join(group.commands) for group in task.node_groups},
        "environments": {name: given for name in names},
        "secrets": {name: secrets for name in names},
    }


def sky(*words: str) -> dict[str, object]:
    from sky.client.cli import command

    found, arguments = command.cli, list(words)
    while hasattr(found, "resolve_command"):
        context = found.make_context("sky", list(arguments))
        _, found, arguments = found.resolve_command(context, arguments)
    return {"parameters": sorted(found.make_context("sky", list(arguments)).params)}


if __name__ == "__main__":
    answer = {"skypilot": skypilot, "dstack": dstack, "sky": sky}[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
