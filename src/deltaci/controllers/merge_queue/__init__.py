"""The merge queue: workstreams reach their base branch only as trees that were tested, several batches at a time.

`decisions.py` decides (pure) which batches to test and what to merge; `controller.py` carries it out;
`candidate_commits.py` builds the commits, `candidate_runs.py` starts and reads their test runs.
"""
