"""After the steps of a job that has a tree: what they left is committed and bundled by the job itself, inside its cell.

The runner only copies the bundle. Whatever a job wrote into its repository acts on nobody but the job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from deltaci.core.errors import Refused
from deltaci.protocol.job_spec import Worktree
from deltaci.protocol.messages import MAX_TREE_BYTES, Artifact, ArtifactRule
from deltaci.runner.actions.context import JobContext
from deltaci.runner.client import Unreachable
from deltaci.runner.log.sections import HAND_OVER
from deltaci.runner.transfers import PATIENCE_SECONDS
from deltaci.runner.workspace.artifacts import ArtifactFile, escape_pattern, find_files, open_file
from deltaci.runner.workspace.collect_outputs import CollectedOutputs
from deltaci.runner.workspace.folders import open_folder
from deltaci.runner.workspace.git import COMMIT
from deltaci.runner.workspace.safe_fs import remove_entry, write_file
from deltaci.runner.workspace.worktrees.exact_checkout import parse_author

CODE: Final = "TREE"
TYPE: Final = "tree"
PATH: Final = "@tree.bundle"  # Of the artifact: no file of a tree is kept under it.
FOLDER: Final = "tree"  # In the job's folder for what lives as long as it.
MESSAGE, HEAD, BUNDLE = "message", "head", "bundle"
UNMERGED, ELSEWHERE, NO_GIT = 91, 92, 93
WHY: Final = {
    UNMERGED: "there are conflicts that nobody resolved; resolve and commit them in a step",
    ELSEWHERE: "HEAD does not stand on the commit that the tree began with; commit on top of it",
    NO_GIT: "there is no git where the steps run, to commit what they left; use an image that has it",
}
SCRIPT: Final = f"""
command -v git >/dev/null || exit {NO_GIT}
run() {{
  git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgSign=false -c gc.auto=0 \\
    -c maintenance.auto=false -c advice.addEmbeddedRepo=false -c safe.directory='*' "$@"
}}
test -z "$(run ls-files --unmerged)" || exit {UNMERGED}
run add --all
run diff --cached --quiet || run commit --quiet --no-verify --allow-empty-message --file="$DELTACI_TREE/{MESSAGE}"
head="$(run rev-parse --verify 'HEAD^{{commit}}')"
run merge-base --is-ancestor "$DELTACI_TIP" "$head" || exit {ELSEWHERE}
if test "$head" != "$DELTACI_TIP"; then
  run update-ref refs/deltaci/head "$head"
  run bundle create --quiet "$DELTACI_TREE/{BUNDLE}" refs/deltaci/head "^$DELTACI_TIP"
fi
printf %s "$head" > "$DELTACI_TREE/{HEAD}"
"""


class CommittedTree(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps left: where HEAD is, and the bundle with what is new, if anything is."""

    head: str
    folder: Path
    bundle: ArtifactFile | None


class NothingCommitted(Exception):
    """Nothing can be handed over, by the job's own doing."""


async def commit_tree(job: JobContext, tree: Worktree, tip: str, seconds: float) -> CommittedTree:
    """Commit what the steps did not, and bundle what is new; raises `NotLeft`."""
    layout = job.layout
    inner = f"{layout.relative(layout.temp)}/{FOLDER}"
    folder = layout.root / inner
    try:
        with open_folder(layout.temp) as temp:
            remove_entry(temp, FOLDER)
        write_file(layout.root, f"{inner}/{MESSAGE}", tree.message or job.spec.name or "What a task left", mode=0o644)
    except OSError as error:
        raise NothingCommitted(
            f"the job's own folders are not what they were: {error.strerror}; leave them alone"
        ) from None
    name, email = parse_author(tree.author)
    env = {
        **job.expressions.variables(),
        **{"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_COMMITTER_NAME": name},
        **{"GIT_COMMITTER_EMAIL": email, "GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0"},
        **{"DELTACI_TREE": str(folder), "DELTACI_TIP": tip},
    }
    with job.log.section(HAND_OVER, "hand over"):
        ended = await job.cell.run(
            SCRIPT, env=env, workdir=layout.workspace, timeout_seconds=seconds, on_output=job.log.write_output
        )
        if ended.exit_code != 0 or ended.is_timed_out:
            took = "it took too long" if ended.is_timed_out else f"git ended with {ended.exit_code}"
            raise NothingCommitted(WHY.get(ended.exit_code or 0, f"what the steps left cannot be committed: {took}"))
        left = await job.transfers.run_in_thread(_left, folder)
        job.log.write_line(f"tree: {left.head}, {left.bundle.bytes if left.bundle else 0} bytes to send")
    return left


def _left(folder: Path) -> CommittedTree:
    """What the job says; the server finds out whether it is true."""
    try:
        found = {
            each.path: each for each in find_files(folder, [ArtifactRule(path_glob=escape_pattern(HEAD)), _BUNDLE])
        }
        if HEAD not in found:
            raise NothingCommitted("the job did not say where HEAD is")
        with open_file(folder, found[HEAD]) as file:
            head = file.read(100).decode("ascii", "replace")
    except (Refused, OSError) as error:
        raise NothingCommitted(f"what the job left cannot be read: {error}") from None
    bundle = found.get(BUNDLE)
    if not COMMIT.fullmatch(head):
        raise NothingCommitted("what the job says of HEAD is no commit")
    if bundle is not None and bundle.bytes > MAX_TREE_BYTES:
        raise NothingCommitted(f"what is new has {bundle.bytes} bytes, at most {MAX_TREE_BYTES} are sent; commit less")
    return CommittedTree(head=head, folder=folder, bundle=bundle)


_BUNDLE: Final = ArtifactRule(path_glob=escape_pattern(BUNDLE))


async def upload_bundle(job: JobContext, left: CommittedTree, brought: CollectedOutputs) -> None:
    """Send what is new, under the lease; what comes of it is a part of what the job brought."""
    bundle = left.bundle
    if bundle is None:
        return
    try:
        kept = await job.transfers.upload(
            f"artifacts/{quote(PATH)}", lambda: open_file(left.folder, bundle), bundle.bytes, PATIENCE_SECONDS
        )
    except Refused as refused:
        brought.fail(CODE, job.log.masked_line(f"tree: {refused.message}"))
        return
    except Unreachable as error:
        brought.fail("UPLOAD", job.log.masked_line(f"tree: {error}"))
        return
    brought.artifacts = [Artifact(type=TYPE, uri=kept.uri, name=PATH, bytes=kept.bytes), *brought.artifacts]
