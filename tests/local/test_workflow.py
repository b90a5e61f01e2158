"""A GitHub workflow runs unchanged: matrix, local action, outputs, artifacts, conditions, shells."""

from __future__ import annotations

from pathlib import Path

from tests.local.repository import Repository
from tests.local.test_run import LocalCli, statuses

WORKFLOW = """
name: CI
on: [push, pull_request]
env: {LEVEL: 3, dash-name: x}
permissions: {}
jobs:
  build:
    runs-on: ${{ matrix.os }}
    strategy:
      matrix:
        os: [ubuntu-latest]
        part: [{n: 1}, {n: 2, skip: "${{ github.event_name == 'x' }}"}]
    outputs: {version: '${{ steps.version.outputs.version }}'}
    steps:
      - uses: actions/checkout@v4
        with: {persist-credentials: false}
      - id: version
        uses: ./.github/actions/version
        with: {prefix: "n${{ matrix.part.n }}"}
      - run: |
          test "$GITHUB_EVENT_NAME ${{ env.dash-name }} ${{ steps.version.outputs.version }} $LEVEL" = \\
            "push x n${{ matrix.part.n }}-1 3"
          test "$GITHUB_SHA" = "$(git rev-parse HEAD)"
          false | true
      - run: false
        continue-on-error: true
      - run: '[[ a = a ]]'
        shell: ${{ matrix.part.n && 'bash' }}
      - uses: actions/upload-artifact@v4
        with: {name: 'out-${{ matrix.part.n }}', path: .github/actions}
  after:
    needs: build
    if: always() && needs.build.result == 'success'
    runs-on: ubuntu-latest
    steps:
      - uses: actions/download-artifact@v4
        with: {pattern: out-*, path: got}
      - run: test "$(ls got | xargs)" = "out-1 out-2" && test "${{ needs.build.outputs.version }}" = n2-1
"""
ACTION = """
inputs: {prefix: {default: p}}
outputs: {version: {value: "${{ steps.a.outputs.x }}"}}
runs:
  using: composite
  steps:
    - id: a
      shell: bash
      run: |
        test -f "$GITHUB_ACTION_PATH/action.yml" && test -f "${{ github.action_path }}/action.yml"
        echo "x=${{ inputs.prefix }}-1" >> "$GITHUB_OUTPUT"
    - {if: always(), shell: sh, run: echo always}
"""


def test_a_github_workflow_runs_unchanged(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "project")
    repository.write(".github/workflows/ci.yml", WORKFLOW)
    repository.write(".github/actions/version/action.yml", ACTION)
    repository.commit()

    outcomes = LocalCli(repository.folder).json("run")

    assert statuses(outcomes) == {
        "build (ubuntu-latest, 1)": "SUCCEEDED",
        "build (ubuntu-latest, 2, false)": "SUCCEEDED",
        "after": "SUCCEEDED",
    }, outcomes
