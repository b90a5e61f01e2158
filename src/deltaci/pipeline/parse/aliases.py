"""Keys of other systems, and how the same is said here. Only for messages: none of them is understood."""

from __future__ import annotations

from typing import Final

FOREIGN_KEYS: Final = {
    "script": "write the commands as 'steps'",
    "before_script": "write these commands as the first 'steps'",
    "after_script": "write them as last steps with 'if: always()'",
    "stage": "there are no stages; say with 'needs' what must come before",
    "stages": "there are no stages; every job says with 'needs' what must come before",
    "variables": "write them as 'env'",
    "environment": "write variables as 'env'",
    "rules": "say 'if' for a condition, 'paths' for paths",
    "only": "say 'on' for events, 'if' for a condition",
    "except": "say 'if' for a condition",
    "when": "say 'if' for a condition, 'approval' for what waits for people",
    "tags": "say 'runs-on' for the labels of the runner",
    "dependencies": "say 'needs'",
    "depends_on": "say 'needs'",
    "extends": "use an anchor and '<<: *name'",
    "include": "one file has all of a pipeline; use anchors for what repeats",
    "container": "say 'image' for the container image",
    "cache": "say 'caches', a list",
    "parallel": "say 'strategy.matrix'",
    "matrix": "it belongs to 'strategy'",
    "workflow_dispatch": "say 'manual'",
    "workflow_call": "a pipeline is not called by others; say 'manual'",
    "merge_request": "say 'pull_request'",
    "cron": "say 'schedule: [{cron: …}]'",
    "permissions": "a job gets no rights but its 'secrets'",
    "timeout": "say 'timeout-minutes', a number",
    "timeout_seconds": "say 'timeout-minutes', a number",
    "command": "say 'run'",
    "commands": "write them as 'steps'",
    "interruptible": "say 'concurrency: {group: …, cancel-in-progress: true}'",
    "resource_group": "say 'concurrency'",
    "workstream": "this is a workstream: start it with 'deltaci ws create', and keep it elsewhere",
    "trigger": "say 'on'",
    "triggers": "say 'on'",
}
