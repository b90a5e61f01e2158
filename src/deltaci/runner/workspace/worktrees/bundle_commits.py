"""After the steps of a job with a worktree: commit and bundle the changes.

The script that commits runs in the job's cell, so anything that a job wrote into its repository affects only that job.
The runner only copies the bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from deltaci.core.errors import Refused, Unreachable
from deltaci.git.repository import is_commit
from deltaci.protocol.job_spec import Worktree
from deltaci.protocol.messages import MAX_TREE_BYTES, Artifact, ArtifactRule
from deltaci.runner.actions.context import JobContext
from deltaci.runner.log.sections import HAND_OVER
from deltaci.runner.transfers import PATIENCE_SECONDS
from deltaci.runner.workspace.artifacts import ArtifactFile, escape_pattern, find_files, open_file
from deltaci.runner.workspace.collect_outputs import CollectedOutputs
from deltaci.runner.workspace.folders import open_folder
from deltaci.runner.workspace.safe_fs import remove_entry, write_file
from deltaci.runner.workspace.worktrees.exact_checkout import parse_author

ERROR_CODE: Final = "TREE"
ARTIFACT_TYPE: Final = "tree"
ARTIFACT_PATH: Final = "@tree.bundle"  # No artifact of a job has this name.
FOLDER: Final = "tree"  # In the job's temporary folder.
MESSAGE_FILE, HEAD_FILE, BUNDLE_FILE = "message", "head", "bundle"
UNMERGED, NOT_DESCENDANT, GIT_MISSING = 91, 92, 93
EXIT_MESSAGES: Final = {
    UNMERGED: "there are unresolved conflicts; resolve and commit them in a step",
    NOT_DESCENDANT: "HEAD does not descend from the tree's first commit; commit on top of it",
    GIT_MISSING: "git is missing where the steps run, so changes cannot be committed; use an image that has it",
}
SCRIPT: Final = f"""
command -v git >/dev/null || exit {GIT_MISSING}
run() {{
  git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgSign=false -c gc.auto=0 \\
    -c maintenance.auto=false -c advice.addEmbeddedRepo=false -c safe.directory='*' "$@"
}}
test -z "$(run ls-files --unmerged)" || exit {UNMERGED}
run add --all
run diff --cached --quiet || run commit --quiet --no-verify --allow-empty-message --file="$DELTACI_TREE/{MESSAGE_FILE}"
head="$(run rev-parse --verify 'HEAD^{{commit}}')"
run merge-base --is-ancestor "$DELTACI_TIP" "$head" || exit {NOT_DESCENDANT}
if test "$head" != "$DELTACI_TIP"; then
  run update-ref refs/deltaci/head "$head"
  run bundle create --quiet "$DELTACI_TREE/{BUNDLE_FILE}" refs/deltaci/head "^$DELTACI_TIP"
fi
printf %s "$head" > "$DELTACI_TREE/{HEAD_FILE}"
"""


class CommittedTree(msgspec.Struct, frozen=True, kw_only=True):
    """The commit at the tip after the job, and the bundle with its new commits; None if there are no new ones."""

    head: str
    folder: Path
    bundle: ArtifactFile | None


class NothingCommitted(Exception):
    """Raised when the changes cannot be committed because of something that the job did."""


async def commit_tree(job: JobContext, tree: Worktree, start_commit: str, seconds: float) -> CommittedTree:
    """Commit uncommitted changes and bundle all new commits. Raise `NothingCommitted` if that is impossible."""
    layout = job.layout
    relative_folder = f"{layout.relative(layout.temp)}/{FOLDER}"
    folder = layout.root / relative_folder
    try:
        with open_folder(layout.temp) as temp_fd:
            remove_entry(temp_fd, FOLDER)
        write_file(
            layout.root,
            f"{relative_folder}/{MESSAGE_FILE}",
            tree.message or job.spec.name or "Changes of a task",
            mode=0o644,
        )
    except OSError as error:
        raise NothingCommitted(f"the job's temporary folder was changed: {error.strerror}; do not change it") from None
    author_name, email = parse_author(tree.author)
    env = {
        **job.expressions.variables(),
        **{"GIT_AUTHOR_NAME": author_name, "GIT_AUTHOR_EMAIL": email, "GIT_COMMITTER_NAME": author_name},
        **{"GIT_COMMITTER_EMAIL": email, "GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0"},
        **{"DELTACI_TREE": str(folder), "DELTACI_TIP": start_commit},
    }
    with job.log.section(HAND_OVER, "hand over"):
        step_exit = await job.cell.run(
            SCRIPT, env=env, workdir=layout.workspace, timeout_seconds=seconds, on_output=job.log.write_output
        )
        if step_exit.exit_code != 0 or step_exit.is_timed_out:
            reason = "it took too long" if step_exit.is_timed_out else f"git ended with {step_exit.exit_code}"
            raise NothingCommitted(
                EXIT_MESSAGES.get(step_exit.exit_code or 0, f"the changes cannot be committed: {reason}")
            )
        committed_tree = await job.transfers.run_in_thread(_read_result, folder)
        job.log.write_line(
            f"tree: {committed_tree.head}, {committed_tree.bundle.bytes if committed_tree.bundle else 0} bytes to send"
        )
    return committed_tree


def _read_result(folder: Path) -> CommittedTree:
    """Return the head and the bundle file that the script wrote; the bundle is None if there are no new commits.

    The job may have changed them; the server verifies the commits.
    """
    try:
        file_by_path = {
            head_file.path: head_file
            for head_file in find_files(folder, [ArtifactRule(path_glob=escape_pattern(HEAD_FILE)), _BUNDLE_RULE])
        }
        if HEAD_FILE not in file_by_path:
            raise NothingCommitted("the job did not report its HEAD")
        with open_file(folder, file_by_path[HEAD_FILE]) as head_file:
            head = head_file.read(100).decode("ascii", "replace")
    except (Refused, OSError) as error:
        raise NothingCommitted(f"the committed changes cannot be read: {error}") from None
    bundle_file = file_by_path.get(BUNDLE_FILE)
    if not is_commit(head):
        raise NothingCommitted("the HEAD that the job reported is not a commit id")
    if bundle_file is not None and bundle_file.bytes > MAX_TREE_BYTES:
        raise NothingCommitted(f"the new commits have {bundle_file.bytes} bytes, at most {MAX_TREE_BYTES}; commit less")
    return CommittedTree(head=head, folder=folder, bundle=bundle_file)


_BUNDLE_RULE: Final = ArtifactRule(path_glob=escape_pattern(BUNDLE_FILE))


async def upload_bundle(job: JobContext, committed_tree: CommittedTree, collected: CollectedOutputs) -> None:
    """Upload the bundle and add it to the job's artifacts. An error is recorded as the job's error."""
    bundle_file = committed_tree.bundle
    if bundle_file is None:
        return
    try:
        uploaded = await job.transfers.upload(
            f"artifacts/{quote(ARTIFACT_PATH)}",
            lambda: open_file(committed_tree.folder, bundle_file),
            bundle_file.bytes,
            PATIENCE_SECONDS,
        )
    except Refused as refused:
        collected.fail(ERROR_CODE, job.log.masked_line(f"tree: {refused.message}"))
        return
    except Unreachable as error:
        collected.fail("UPLOAD", job.log.masked_line(f"tree: {error}"))
        return
    collected.artifacts = [
        Artifact(type=ARTIFACT_TYPE, uri=uploaded.uri, name=ARTIFACT_PATH, bytes=uploaded.bytes),
        *collected.artifacts,
    ]
