-- Administrative objects, such as keys and projects. `version` counts the writes of a row. The rows without a kind count
-- the administrative events of a tenant.
CREATE TABLE resources (
    id         TEXT PRIMARY KEY,
    kind       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    body       BLOB NOT NULL
);
CREATE INDEX resources_present ON resources (kind, tenant, name) WHERE state = 'PRESENT';
-- A key is found before its tenant is known.
CREATE UNIQUE INDEX resources_key ON resources (name) WHERE kind = 'key';
