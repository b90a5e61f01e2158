"""Keys of other CI systems, and the hint with which the reader refuses each of them."""

from __future__ import annotations

from typing import Final

FOREIGN_KEYS: Final = {
    "script": "write the commands as 'steps'",
    "before_script": "write these commands as the first 'steps'",
    "after_script": "write them as last steps with 'if: always()'",
    "stage": "there are no stages; name the jobs that must come before in 'needs'",
    "stages": "there are no stages; each job names the jobs that must come before in 'needs'",
    "variables": "write them as 'env'",
    "environment": "write variables as 'env'",
    "rules": "use 'if' for a condition, 'paths' for paths",
    "only": "use 'on' for events, 'if' for a condition",
    "except": "use 'if' for a condition",
    "when": "use 'if' for a condition, 'approval' to wait for people",
    "tags": "use 'runs-on' for the labels of the runner",
    "dependencies": "use 'needs'",
    "depends_on": "use 'needs'",
    "extends": "use an anchor and '<<: *name'",
    "include": "a pipeline is one file; use anchors for repeated parts",
    "container": "use 'image' for the container image",
    "cache": "use 'caches', a list",
    "parallel": "use 'strategy.matrix'",
    "matrix": "write it below 'strategy'",
    "workflow_dispatch": "use 'manual'",
    "workflow_call": "a pipeline cannot be called by others; use 'manual'",
    "merge_request": "use 'pull_request'",
    "cron": "use 'schedule: [{cron: …}]'",
    "permissions": "a job has no permissions except its 'secrets'",
    "timeout": "use 'timeout-minutes', a number",
    "timeout_seconds": "use 'timeout-minutes', a number",
    "command": "use 'run'",
    "commands": "write them as 'steps'",
    "interruptible": "use 'concurrency: {group: …, cancel-in-progress: true}'",
    "resource_group": "use 'concurrency'",
    "workstream": "this is a workstream: start it with 'deltaci ws create', and store it in another file",
    "trigger": "use 'on'",
    "triggers": "use 'on'",
}
