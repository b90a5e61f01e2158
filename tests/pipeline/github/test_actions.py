"""Builtin actions, and composite actions of the same repository."""

from __future__ import annotations

import pytest

from deltaci.pipeline import model
from deltaci.pipeline.github.builtin_actions import ACTIONS
from deltaci.pipeline.parse.action_inputs import ACTION_INPUTS
from tests.pipeline.github.workflows import first_step, job, messages, only_job, parsed

PATH = ".github/actions/go/action.yml"


@pytest.mark.parametrize(
    ("uses", "builtin", "inputs"),
    [
        ("actions/checkout@v4", "checkout", "{fetch-depth: 0, submodules: recursive, path: a}"),
        ("actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683", "checkout", "{ref: v1}"),
        ("actions/cache@v3", "cache", "{path: a, key: 'k-${{ hashFiles(''a'') }}', restore-keys: k-}"),
        ("actions/upload-artifact@v4", "upload-artifact", "{name: a, path: b, if-no-files-found: error}"),
        ("actions/download-artifact@v4", "download-artifact", "{pattern: a-*, merge-multiple: true, path: x}"),
        ("Actions/Setup-Python@main", "setup-python", "{python-version: '3.12', allow-prereleases: true}"),
        ("actions/setup-node@v1", "setup-node", "{node-version: 20}"),
    ],
)
def test_builtin_actions_keep_supported_inputs(uses: str, builtin: str, inputs: str) -> None:
    """At any version."""
    step = first_step(f"- uses: {uses}\n  with: {inputs}\n  if: always()")
    names = {pair.split(": ", 1)[0] for pair in inputs[1:-1].split(", ")}

    assert (step.uses, step.if_, step.run) == (builtin, "always()", None)
    assert set(step.with_) == names


def test_every_builtin_step_implements_an_action() -> None:
    """And every action is a builtin step."""
    assert {action.uses for action in ACTIONS.values()} == set(model.BuiltIn.__args__)  # type: ignore[attr-defined]


def test_supported_inputs_exist_in_the_builtin_steps() -> None:
    """Otherwise an imported pipeline would be refused."""
    for action in ACTIONS.values():
        supported = {name for name, rule in action.inputs.items() if rule.kind == "supported"}
        assert supported <= set(ACTION_INPUTS[action.uses]), action.uses


def test_unsupported_cache_paths_and_keys_are_reported() -> None:
    """The runner ignores patterns, and keys must not contain commas."""
    text = job(steps="- uses: actions/cache@v4\n  with: {key: 'a,${{ github.sha }}', path: '**/node_modules'}")

    assert messages(text) == ["7:21: a comma in 'key' of a cache; use another character"]
    assert messages(text, notes=True) == [
        "7:50: '**/node_modules' of a cache, which is a pattern; matching files are not cached: name the folder"
    ]


@pytest.mark.parametrize(
    "ref", ["github.sha", "github.head_ref || github.ref", "github.event.pull_request.head.sha", "github.ref"]
)
def test_a_ref_for_the_commit_of_the_change_has_no_effect(ref: str) -> None:
    """In any of GitHub's expressions for it."""
    text = (
        f"- uses: actions/checkout@v4\n  with: {{ref: '${{{{ {ref} }}}}', repository: '${{{{ github.repository }}}}'}}"
    )

    assert first_step(text) == model.Step(uses="checkout")
    assert len(messages(job(steps=text), notes=True)) == 2


def test_inputs_with_default_values_are_accepted_silently() -> None:
    """Most workflows contain them."""
    text = job(steps="- uses: actions/checkout@v4\n  with: {persist-credentials: false, lfs: false}")

    assert parsed(text).problems == ()


def test_the_rust_toolchain_action_becomes_a_command() -> None:
    """The version of the action is the toolchain."""
    step = first_step("- uses: dtolnay/rust-toolchain@1.80\n  with: {components: 'clippy, rustfmt'}\n  env: {A: 1}")

    assert step.run is not None
    assert 'rustup default "$TOOLCHAIN"' in step.run
    assert step.env == {"A": 1, "COMPONENTS": "clippy, rustfmt", "TARGETS": "", "TOOLCHAIN": "1.80"}
    assert step.shell == "bash"


def test_actions_that_only_affect_speed_are_ignored() -> None:
    """With a warning."""
    text = job(steps="- uses: Swatinem/rust-cache@v2\n- run: make")

    assert only_job(text).steps == (model.Step(run="make"),)
    assert messages(text, notes=True) == [
        "6:15: the action 'Swatinem/rust-cache' has no effect here; it only caches build results"
    ]


# -- composite actions


def job_steps(action: str, uses: str = "- uses: ./.github/actions/go", keys: str = "") -> tuple[model.Step, ...]:
    """Return the steps of a job that uses an action."""
    steps = only_job(job(keys, uses), {PATH: action}).steps
    assert steps is not None
    return steps


def composite(steps: str, more: str = "") -> str:
    """Return a composite action."""
    return f"name: x\n{more}runs:\n  using: composite\n  steps: {steps}\n"


def test_the_steps_of_an_action_replace_the_using_step() -> None:
    """Its inputs are given values or defaults; all are texts, as on GitHub."""
    action = composite(
        "[{run: 'echo ${{ inputs.a }} ${{ inputs.B }}', shell: bash, env: {T: '${{ inputs.c }}'}},"
        " {uses: actions/setup-node@v4, with: {node-version: '${{ inputs.c }}'}}]",
        "inputs: {a: {default: x}, b: {default: true}, c: {required: true}}\n",
    )

    steps = job_steps(action, "- uses: ./.github/actions/go\n  with: {c: '${{ matrix.c }}', A: y}")

    assert steps == (
        model.Step(run="echo y true", shell="bash", id="_step0___0", env={"T": "${{ format('{0}', matrix.c) }}"}),
        model.Step(uses="setup-node", id="_step0___1", with_={"node-version": "${{ format('{0}', matrix.c) }}"}),
    )


def test_outputs_of_an_action_are_set_under_its_id() -> None:
    """By a final step; the steps of the action have other ids."""
    action = composite(
        "[{id: v, run: a, shell: sh}, {run: 'b ${{ steps.v.outputs.x }}', shell: sh}]",
        "outputs: {version: {value: '${{ steps.v.outputs.x }}'}}\n",
    )

    steps = job_steps(action, "- uses: ./.github/actions/go\n  id: go")

    assert [step.id for step in steps] == ["go__v", "go___1", "go"]
    assert steps[1].run == "b ${{ steps.go__v.outputs.x }}"
    assert steps[2].env == {
        "FAILED": "${{ steps.go__v.conclusion == 'failure' || steps.go___1.conclusion == 'failure' }}",
        "OUTPUT_0": "${{ steps.go__v.outputs.x }}",
    }
    assert steps[2].if_ == "steps.go__v.conclusion != 'skipped' && always()"
    assert "'version'" in (steps[2].run or "")


@pytest.mark.parametrize(
    ("outer", "inner", "conditions"),
    [
        ("", "", [None, None]),
        ("github.ref", "", ["github.ref", "github.ref"]),
        ("", "inputs.a", [None, "'1'"]),
        ("github.ref", "inputs.a", ["github.ref", "github.ref && '1'"]),
        ("", "always()", [None, "steps._step0___0.conclusion != 'skipped' && always()"]),
        ("github.ref", "always()", ["github.ref", "steps._step0___0.conclusion != 'skipped' && always()"]),
        ("always()", "", ["always()", "always() && steps._step0___0.conclusion != 'failure'"]),
    ],
)
def test_conditions_of_the_using_step_and_of_inner_steps_are_combined(
    outer: str, inner: str, conditions: list[str | None]
) -> None:
    """A step runs if the action does and no step of it failed, unless it uses a status function."""
    action = composite(f'[{{run: a, shell: sh}}, {{run: b, shell: sh, if: "{inner}"}}]', "inputs: {a: {default: 1}}\n")

    steps = job_steps(action, f"- uses: ./.github/actions/go\n  if: {outer}")

    assert [step.if_ for step in steps] == conditions


def test_an_action_with_continue_on_error_stops_at_the_first_failure() -> None:
    """The job continues. Inputs are texts, as GitHub reads them."""
    action = composite("[{run: '${{ inputs.v }}', shell: sh}, {run: b, shell: sh}]", "inputs: {v: {}}\n")

    steps = job_steps(action, "- uses: ./.github/actions/go\n  id: go\n  continue-on-error: true\n  with: {v: 4.0}")

    assert [step.continue_on_error for step in steps] == [True, True, True]
    assert [step.if_ for step in steps] == [
        None,
        "steps.go___0.outcome != 'failure'",
        "steps.go___0.conclusion != 'skipped' && always()",
    ]
    assert steps[0].run == "4"
    assert steps[2].env["FAILED"] == "${{ steps.go___0.outcome == 'failure' || steps.go___1.outcome == 'failure' }}"


def test_the_action_path_is_available() -> None:
    """As variable and in the context; its commands run in the workspace, whatever the job's working directory is."""
    action = composite("[{run: '$GITHUB_ACTION_PATH/a ${{ github.action_path }}', shell: sh}]")
    path = "${{ format('{0}/.github/actions/go', github.workspace) }}"

    [step] = job_steps(action, keys="defaults: {run: {working-directory: sub}}")

    assert step.env == {"GITHUB_ACTION_PATH": path}
    assert step.run == f"$GITHUB_ACTION_PATH/a {path}"
    assert step.working_directory == "."


@pytest.mark.parametrize(
    ("action", "step", "reason"),
    [
        (
            "runs: {using: node20, main: a.js}",
            "",
            ":1:15: an action that uses 'node20'; only composite actions are supported: 'using: composite'",
        ),
        (
            composite("[{uses: a/b@v1}]"),
            "",
            ":4:18: the action 'a/b'; only some of GitHub's own actions are supported: use a command",
        ),
        (
            composite("[{uses: ./.github/actions/go}]"),
            "",
            "expected at most 10 actions that use each other",
        ),
        (
            composite("[{run: a, shell: sh}, {run: b, shell: sh}]"),
            "timeout-minutes: 3",
            ":4:11: 'timeout-minutes' of an action with several steps; set it for a command",
        ),
        (
            composite("[{run: a, shell: sh}, {run: b, shell: sh, if: failure()}]"),
            "if: always()",
            ":4:11: steps with a status function, in an action that may fail or whose own 'if' has a status function; "
            "use such a function in only one of them",
        ),
        (
            "a: [",
            "",
            ":1:5: a closing sign without an opening one; remove it, or quote the text",
        ),
    ],
)
def test_unsupported_composite_actions(action: str, step: str, reason: str) -> None:
    """The problem is reported at the using step, with the position in the action."""
    workflow = parsed(job(steps=f"- uses: ./.github/actions/go\n  {step}"), {PATH: action})

    [first, *_] = [problem for problem in workflow.problems if not problem.is_warning]
    assert (first.line, first.column) == (6, 15)
    assert str(first).endswith(reason)
