-- Administrative objects, such as keys and projects. `version` counts the writes of a row. The rows without a kind count
-- the administrative events of a tenant.
CREATE TABLE resources (
    id         text COLLATE "C" PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    state      text COLLATE "C" NOT NULL,
    updated_at bigint NOT NULL,
    body       bytea NOT NULL
);
CREATE INDEX resources_present ON resources (kind, tenant, name) WHERE state = 'PRESENT';
-- A key is found before its tenant is known.
CREATE UNIQUE INDEX resources_key ON resources (name) WHERE kind = 'key';
