-- A tenant's workers claim only that tenant's work, so the way to what is ready begins with the tenant.
-- Records from before this step get the name that a queue has unless it is given one. Whatever else is in their
-- bodies, nothing was released before this step, so there is nobody whose records it could be wrong for.
ALTER TABLE records ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
DROP INDEX records_ready;
CREATE INDEX records_ready ON records (tenant, queue_key, priority DESC, ready_at, id) WHERE ready_at IS NOT NULL;
