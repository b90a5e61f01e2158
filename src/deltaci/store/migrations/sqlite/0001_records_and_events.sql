-- What is going on now: small, and the only table that the engine writes to again and again.
CREATE TABLE records (
    id        TEXT PRIMARY KEY,
    kind      INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    run_id    TEXT NOT NULL,
    queue_key TEXT NOT NULL,
    priority  INTEGER NOT NULL,
    ready_at  INTEGER,
    due_at    INTEGER,
    body      BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX records_ready ON records (queue_key, priority DESC, ready_at, id) WHERE ready_at IS NOT NULL;
CREATE INDEX records_due ON records (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX records_run ON records (run_id, kind) WHERE run_id <> '';

-- What is over.
CREATE TABLE history (
    id       TEXT PRIMARY KEY,
    kind     INTEGER NOT NULL,
    run_id   TEXT NOT NULL,
    ended_at INTEGER NOT NULL,
    body     BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX history_run ON history (run_id, kind) WHERE run_id <> '';
CREATE INDEX history_ended ON history (ended_at);

-- The log. An event's key is (entity, rev): a gap or a double shows in the data itself.
CREATE TABLE events (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    entity_id TEXT NOT NULL,
    rev       INTEGER NOT NULL,
    run_id    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    is_beat   INTEGER NOT NULL,
    body      BLOB NOT NULL
);
CREATE UNIQUE INDEX events_key ON events (entity_id, rev);
CREATE INDEX events_run ON events (run_id, seq) WHERE run_id <> '';
