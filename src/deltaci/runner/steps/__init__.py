"""The steps of a job: their order and conditions, shells, environment, expressions and reports to the runner.

`sequence.py` runs them in order; `command_files.py` and `workflow_commands.py` read what a step reports to the runner;
`service_containers.py` starts containers beside them; `validation.py` checks the rules that hold after them.
"""
