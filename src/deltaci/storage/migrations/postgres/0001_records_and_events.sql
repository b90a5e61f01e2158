-- What is going on now: small, and the only table that the engine writes to again and again.
-- Room on every page lets an update that touches no index stay where it is.
CREATE TABLE records (
    id        text PRIMARY KEY,
    kind      smallint NOT NULL,
    version   bigint NOT NULL,
    run_id    text NOT NULL,
    queue_key text NOT NULL,
    priority  integer NOT NULL,
    ready_at  bigint,
    due_at    bigint,
    body      bytea NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX records_ready ON records (queue_key, priority DESC, ready_at, id) WHERE ready_at IS NOT NULL;
CREATE INDEX records_due ON records (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX records_run ON records (run_id, kind) WHERE run_id <> '';

-- What is over.
CREATE TABLE history (
    id       text PRIMARY KEY,
    kind     smallint NOT NULL,
    run_id   text NOT NULL,
    ended_at bigint NOT NULL,
    body     bytea NOT NULL
);
CREATE INDEX history_run ON history (run_id, kind) WHERE run_id <> '';
CREATE INDEX history_ended ON history USING brin (ended_at);

-- The log, one row for each transaction. An event's key is (entity, rev): a gap or a double shows in the data itself.
-- Nothing in it is worth the time that compressing takes on the write path.
CREATE TABLE chunks (
    last_seq bigint PRIMARY KEY,
    count    integer NOT NULL,
    at       bigint NOT NULL,
    body     bytea NOT NULL
);
ALTER TABLE chunks ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX chunks_at ON chunks USING brin (at);
-- Where the events of a run, of a worker or of an attempt without a run are found.
CREATE TABLE chunk_scopes (
    scope    text NOT NULL,
    last_seq bigint NOT NULL,
    PRIMARY KEY (scope, last_seq)
);
-- Whoever appends holds this row until the commit: seq grows in the order of commits.
CREATE TABLE log_head (seq bigint NOT NULL);
INSERT INTO log_head VALUES (0);
