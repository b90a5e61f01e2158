-- Where people find runs and workers: one entry for each list that a record is on. What is listed follows from the
-- record, see core/listing.py. Records from before this step join a list when they change. Nothing was released then.
CREATE TABLE listed (
    tenant TEXT NOT NULL,
    list   TEXT NOT NULL,
    at     INTEGER NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, list, at, id)
) WITHOUT ROWID;

-- What people wrote: keys, templates, quotas.
CREATE TABLE documents (
    kind    TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (kind, tenant, name)
) WITHOUT ROWID;
-- A key is looked up before anybody knows whose it is.
CREATE UNIQUE INDEX documents_key ON documents (name) WHERE kind = 'key';

-- An attempt has a deadline exactly while it has a lease: this counts the live leases of a tenant. The order is one that
-- no other index has, so that whoever counts in it comes this way.
CREATE INDEX records_held ON records (tenant, priority) WHERE kind = 2 AND due_at IS NOT NULL;
