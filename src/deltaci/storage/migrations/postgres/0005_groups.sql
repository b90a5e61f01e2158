-- Of the attempts of a group, one at a time has a lease: who has the group is found among the live leases. What has no
-- group is in neither of these indexes.
ALTER TABLE records ADD COLUMN group_name text;
CREATE INDEX records_group_held ON records (tenant, group_name) WHERE group_name IS NOT NULL AND due_at IS NOT NULL;
-- And among those that lost their lease, and may be claimed again only when their last worker has surely stopped.
CREATE INDEX records_group_ready ON records (tenant, group_name, ready_at)
    WHERE group_name IS NOT NULL AND ready_at IS NOT NULL;
