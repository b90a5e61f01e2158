"""One example of each message: a literal copy from document 001, or an example of ours if it has none."""

from __future__ import annotations

from typing import Final

# Examples of document 001.
DOCUMENT_EXAMPLES: Final[dict[str, str]] = {
    "LeaseGranted": """{
  "type": "LeaseGranted",
  "job_id": "job_123",
  "run_id": "run_456",
  "lease_id": "lease_abc",
  "lease_ttl_seconds": 120,
  "heartbeat_interval_seconds": 20,
  "max_runtime_seconds": 3600,
  "job_spec": {
    "name": "unit-tests",
    "workdir": ".",
    "image": "ghcr.io/delta-ci/runner-dotnet:9",
    "steps": ["dotnet test -c Release"],
    "env": { "CI": "true" },
    "artifacts": [
      { "type": "junit", "path_glob": "**/TestResults/*.trx" }
    ],
    "caches": [
      { "type": "deps", "key": "nuget:{lock_hash}", "paths": ["~/.nuget/packages"] }
    ]
  },
  "cancel_token": "cancel_tok_optional"
}""",
    "AckLease": """{
  "type": "AckLease",
  "job_id": "job_123",
  "lease_id": "lease_abc",
  "runner_id": "runner_xyz",
  "accepted_at": "2026-01-04T08:00:00Z"
}""",
    "Heartbeat": """{
  "type": "Heartbeat",
  "lease_id": "lease_abc",
  "runner_id": "runner_xyz",
  "progress": {
    "percent": 35,
    "current_step": "dotnet test -c Release",
    "step_index": 0,
    "message": "Running tests..."
  },
  "log_cursor": {
    "bytes_sent": 1048576
  },
  "ts": "2026-01-04T08:00:20Z"
}""",
    "HeartbeatAck": """{
  "type": "HeartbeatAck",
  "lease_id": "lease_abc",
  "extend_lease": true,
  "new_lease_ttl_seconds": 120,
  "cancel_requested": false,
  "cancel_deadline_seconds": 0
}""",
    "Complete": """{
  "type": "Complete",
  "lease_id": "lease_abc",
  "runner_id": "runner_xyz",
  "status": "SUCCEEDED",
  "exit_code": 0,
  "timings": {
    "started_at": "2026-01-04T08:00:05Z",
    "finished_at": "2026-01-04T08:03:12Z"
  },
  "artifacts": [
    { "type": "log", "uri": "s3://delta-ci-artifacts/runs/run_456/jobs/job_123/log.txt" },
    { "type": "junit", "uri": "s3://delta-ci-artifacts/runs/run_456/jobs/job_123/test.trx" }
  ],
  "summary": "All tests passed."
}""",
    "CompleteAck": """{
  "type": "CompleteAck",
  "lease_id": "lease_abc",
  "accepted": true
}""",
    "CancelRequested": """{
  "type": "CancelRequested",
  "lease_id": "lease_abc",
  "job_id": "job_123",
  "reason": "RUN_CANCELED",
  "deadline_seconds": 30,
  "ts": "2026-01-04T08:01:10Z"
}""",
    "CancelAck": """{
  "type": "CancelAck",
  "lease_id": "lease_abc",
  "runner_id": "runner_xyz",
  "final_status": "CANCELED",
  "ts": "2026-01-04T08:01:25Z",
  "artifacts": [
    { "type": "log", "uri": "s3://delta-ci-artifacts/runs/run_456/jobs/job_123/log.partial.txt" }
  ],
  "summary": "Canceled during step: dotnet test."
}""",
    "StaleLease": """{
  "type": "StaleLease",
  "lease_id": "lease_abc",
  "reason": "LEASE_EXPIRED"
}""",
}

# Messages without an example in document 001.
OWN_EXAMPLES: Final[dict[str, str]] = {
    "Lease": """{
  "type": "Lease",
  "runner_id": "runner_xyz",
  "capabilities": ["linux", "x64"],
  "slots": 2,
  "wait_seconds": 30
}""",
    "Dispatch": """{
  "type": "Dispatch",
  "attempt_id": "run_456/job_123.1"
}""",
    "Leave": """{
  "type": "Leave",
  "runner_id": "runner_xyz"
}""",
    "Control": """{
  "type": "Control",
  "runner_id": "runner_xyz",
  "lease_ids": ["lease_abc"],
  "wait_seconds": 30
}""",
    "CancelAcked": """{
  "type": "CancelAcked",
  "lease_id": "lease_abc",
  "accepted": true
}""",
    "Registration": """{
  "token": "dci_registration",
  "capabilities": ["linux", "x64"],
  "slots": 2
}""",
    "Renewal": """{
  "capabilities": ["linux", "x64", "gpu"],
  "slots": 4
}""",
    "Streams": """{
  "ids": ["run_456"]
}""",
    "Registered": """{
  "runner_id": "runner_xyz",
  "credential": "dci_credential",
  "expires_in_seconds": 900,
  "tenant": "default"
}""",
    "Problem": """{
  "code": "log_gap",
  "message": "the log ends at byte 1024, not at 2048; send it from there"
}""",
}
