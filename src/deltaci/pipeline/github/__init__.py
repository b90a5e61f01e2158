"""Converts GitHub workflow files to pipelines, as far as they use the supported subset (docs/github-workflows.md).

`parse_workflow` returns the pipeline, or every reason why not, with its position. Nothing is silently ignored, and a
workflow with an unsupported job does not run unless other jobs are requested by name. Pure. Imports `core` and the
pipeline parser. Start with `workflow`; the subset is in `keys` and `builtin_actions`.
"""

from deltaci.pipeline.github.workflow import WORKFLOW_FOLDER, ParsedWorkflow, is_workflow_path, parse_workflow

__all__ = ["WORKFLOW_FOLDER", "ParsedWorkflow", "is_workflow_path", "parse_workflow"]
