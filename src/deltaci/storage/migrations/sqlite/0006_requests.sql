-- Requests that were applied to a record with many of them, moved out of its body. A request is its id and a hash of its
-- content. Rows live as long as their record.
CREATE TABLE moved_requests (
    record_id  TEXT NOT NULL,
    request_id TEXT NOT NULL,
    request    TEXT NOT NULL,
    PRIMARY KEY (record_id, request_id, request)
) WITHOUT ROWID;

-- The leases that a claim with a request id was granted, one row per lease, as long as their attempts.
CREATE TABLE claim_grants (
    tenant       TEXT NOT NULL,
    worker_id    TEXT NOT NULL,
    request_id   TEXT NOT NULL,
    position     INTEGER NOT NULL,
    attempt_id   TEXT NOT NULL,
    lease_number INTEGER NOT NULL,
    PRIMARY KEY (tenant, worker_id, request_id, position)
) WITHOUT ROWID;
CREATE INDEX claim_grants_attempt ON claim_grants (attempt_id);
