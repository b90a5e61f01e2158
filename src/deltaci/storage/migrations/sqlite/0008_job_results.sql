-- The latest result of each job with the same inputs, by which a run leaves out jobs that have succeeded with equal inputs.
-- `inputs` is a hash, `trust` is empty for changes of people who may write to the repository.
CREATE TABLE job_results (
    tenant    TEXT NOT NULL,
    project   TEXT NOT NULL,
    trust     TEXT NOT NULL,
    job       TEXT NOT NULL,
    inputs    TEXT NOT NULL,
    state     TEXT NOT NULL,
    commit_id TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    ended_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, project, trust, job, inputs)
) WITHOUT ROWID;
CREATE INDEX job_results_ended ON job_results (ended_at);
