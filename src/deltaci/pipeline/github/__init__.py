"""GitHub's workflow files as pipelines, as far as they stay inside a documented subset. PURE, as all of this room.

`read` gives a pipeline, or every reason why not, with its place; nothing is left out in silence, and a workflow of
which one job is outside is not run at all, unless somebody asks for the others by name.
"""

from deltaci.pipeline.github.workflow import FOLDER, Workflow, is_workflow, read

__all__ = ["FOLDER", "Workflow", "is_workflow", "read"]
