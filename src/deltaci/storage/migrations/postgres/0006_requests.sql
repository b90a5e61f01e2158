-- Requests that were applied to a record with many of them, moved out of its body. A request is its id and a hash of its
-- content. Rows live as long as their record.
CREATE TABLE moved_requests (
    record_id  text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    request    text COLLATE "C" NOT NULL,
    PRIMARY KEY (record_id, request_id, request)
);

-- The leases that a claim with a request id was granted, one row per lease, as long as their attempts.
CREATE TABLE claim_grants (
    tenant       text COLLATE "C" NOT NULL,
    worker_id    text COLLATE "C" NOT NULL,
    request_id   text COLLATE "C" NOT NULL,
    position     integer NOT NULL,
    attempt_id   text COLLATE "C" NOT NULL,
    lease_number integer NOT NULL,
    PRIMARY KEY (tenant, worker_id, request_id, position)
);
CREATE INDEX claim_grants_attempt ON claim_grants (attempt_id);
