-- An attempt that was ended by force keeps its group until its runner must have stopped. One row per group.
CREATE TABLE group_fences (
    tenant     TEXT NOT NULL,
    group_name TEXT NOT NULL,
    fence_until INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    PRIMARY KEY (tenant, group_name)
) WITHOUT ROWID;

-- Attempts that an older version left without a lease and without a time from which on they can be claimed: they wait
-- to be queued again by hand. The timers process what is due, and store that time for them.
UPDATE records SET due_at = 0 WHERE kind = 2 AND due_at IS NULL AND ready_at IS NULL;
