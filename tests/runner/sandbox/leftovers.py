"""A step that leaves every kind of process that is hard to find and to end."""

from __future__ import annotations

READY = b"all are there\n"
COUNT = 5  # the step, a daemon, a deaf one, one without environment, and its orphaned child

# Each says "up" through the pipe `ready` when it is there; the step waits for four of them.
START = r"""
mkfifo ready
exec 9<>ready
(setsid bash -c 'echo up >ready; exec sleep 1000' >/dev/null 2>&1 9>&- &)
(setsid bash -c 'trap "" TERM INT HUP; echo up >ready; while :; do sleep 1000; done' >/dev/null 2>&1 9>&- &)
env -i PATH="$PATH" setsid bash -c '
  (setsid bash -c "echo up >ready; exec sleep 1000" &)
  trap "" TERM; echo up >ready; while :; do sleep 1000; done' >/dev/null 2>&1 9>&- &
for each in 1 2 3 4; do read -r word <&9; done
"""
DAEMONS = f"""{START}
echo all are there
"""
# Deaf before it says so, but after the others were started: who ignores a signal passes that on.
LEFTOVERS = f"""{START}
trap '' TERM INT HUP
echo all are there
while :; do sleep 1000; done
"""
