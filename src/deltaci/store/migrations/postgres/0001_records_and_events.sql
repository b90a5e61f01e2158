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

-- The log. An event's key is (entity, rev): a gap or a double shows in the data itself.
CREATE TABLE events (
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entity_id text NOT NULL,
    rev       bigint NOT NULL,
    run_id    text NOT NULL,
    at        bigint NOT NULL,
    is_beat   boolean NOT NULL,
    body      bytea NOT NULL
);
CREATE UNIQUE INDEX events_key ON events (entity_id, rev);
CREATE INDEX events_run ON events (run_id, seq) WHERE run_id <> '';
CREATE INDEX events_at ON events USING brin (at);
