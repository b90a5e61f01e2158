-- The latest result of each job with the same inputs, by which a run leaves out jobs that have succeeded with equal inputs.
-- `inputs` is a hash, `trust` is empty for changes of people who may write to the repository.
CREATE TABLE job_results (
    tenant    text COLLATE "C" NOT NULL,
    project   text COLLATE "C" NOT NULL,
    trust     text COLLATE "C" NOT NULL,
    job       text COLLATE "C" NOT NULL,
    inputs    text COLLATE "C" NOT NULL,
    state     text COLLATE "C" NOT NULL,
    commit_id text COLLATE "C" NOT NULL,
    run_id    text COLLATE "C" NOT NULL,
    ended_at  bigint NOT NULL,
    PRIMARY KEY (tenant, project, trust, job, inputs)
);
CREATE INDEX job_results_ended ON job_results (ended_at);
