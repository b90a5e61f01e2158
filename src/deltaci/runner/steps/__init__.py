"""The steps of a job: which run, with which shell, environment and expression values, and what they report.

`sequence.py` runs them in order; `command_files.py` and `workflow_commands.py` read what a step reports to the runner;
`service_containers.py` starts containers beside them; `validation.py` checks the rules that hold after them.
"""
