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

-- The log, one row for each transaction. An event's key is (entity, rev): a gap or a double shows in the data itself.
CREATE TABLE chunks (
    last_seq INTEGER PRIMARY KEY,
    count    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    body     BLOB NOT NULL
);
CREATE INDEX chunks_at ON chunks (at);
-- Where the events of a run, of a worker or of an attempt without a run are found.
CREATE TABLE chunk_scopes (
    scope    TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (scope, last_seq)
) WITHOUT ROWID;
CREATE TABLE log_head (seq INTEGER NOT NULL);
INSERT INTO log_head VALUES (0);
