-- Where people find runs and workers: one entry for each list that a record is on. What is listed follows from the
-- record, see core/listing.py. Records from before this step join a list when they change. Nothing was released then.
-- Names are ordered byte by byte, as everywhere else.
CREATE TABLE listed (
    tenant text COLLATE "C" NOT NULL,
    list   text COLLATE "C" NOT NULL,
    at     bigint NOT NULL,
    id     text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, list, at, id)
);

-- What people wrote: keys, templates, quotas.
CREATE TABLE documents (
    kind    text COLLATE "C" NOT NULL,
    tenant  text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    at      bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (kind, tenant, name)
);
-- A key is looked up before anybody knows whose it is.
CREATE UNIQUE INDEX documents_key ON documents (name) WHERE kind = 'key';

-- An attempt has a deadline exactly while it has a lease: this counts the live leases of a tenant. The order is one that
-- no other index has, so that whoever counts in it comes this way.
CREATE INDEX records_held ON records (tenant, priority) WHERE kind = 2 AND due_at IS NOT NULL;
