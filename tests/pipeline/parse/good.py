"""Valid pipeline files: the examples of docs/pipelines.md, and further notations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "pipelines.md"

OTHERS: Final = {
    "the smallest": "jobs: {a: {steps: [x]}}",
    "json": '{"on": ["push"], "jobs": {"a": {"steps": [{"run": "x"}]}}}',
    "a byte order mark": "\ufeffjobs: {a: {steps: [x]}}\n",
    "windows": "jobs:\r\n  a:\r\n    steps:\r\n      - run: |\r\n          a\r\n          b\r\n",
    "one document with its marks": "---\njobs: {a: {steps: [x]}}\n...\n",
    "a directive of this version": "%YAML 1.2\n---\njobs: {a: {steps: [x]}}\n",
    "anchors": "jobs:\n  a: &a\n    env: &e {A: x}\n    steps: [x]\n  b:\n    <<: *a\n    env: *e\n    needs: a\n",
    "several merges": "jobs:\n  a: &a {image: x, steps: [x]}\n  b: &b {image: y, steps: [y]}\n  c: {<<: [*a, *b]}\n",
    "a tag that says what it is": "jobs: {a: {steps: [!!str x], env: {A: !!str 3.10}}}",
    "a condition as a truth": "jobs: {a: {if: false, steps: [x]}}",
    "a need that comes later": "jobs: {a: {needs: b, steps: [x]}, b: {steps: [x]}}",
    "a need that may be absent": "jobs: {a: {needs: {job: b, optional: true}, steps: [x]}, b: {steps: [x]}}",
    "an approval of anybody": "jobs:\n  a:\n    approval:\n",
    "cron with names": "on: {schedule: '*/15 0-6,12 1 jan-MAR mon,fri'}\njobs: {a: {steps: [x]}}",
    "numbers": "jobs: {a: {env: {A: 3.11, B: -1, C: 0, D: 0.5}, steps: [x], timeout-minutes: 0.5}}",
    "a matrix from a variable": "jobs:\n  a:\n    strategy:\n      matrix: ${{ fromJSON(vars.x) }}\n"
    "      max-parallel: ${{ vars.y }}\n    steps: [x]\n",
    "a label from a matrix": "jobs: {a: {runs-on: '${{ matrix.os }}', strategy: {matrix: {os: [a, b]}}, steps: [x]}}",
    "expressions about others": "jobs:\n  a: {steps: [{id: s, run: x}], outputs: {o: '${{ steps.s.outputs.p }}'}}\n"
    "  b:\n    needs: a\n    if: always() && needs.a.result == 'success' && needs.A.outputs.o\n    secrets: [S]\n"
    "    steps: ['echo ${{ secrets.S }} ${{ needs.a.outputs.o }} ${{ toJSON(needs) }} ${{ needs.*.result }}']\n",
    "other letters": "name: Größe 测试 🚀\njobs: {a: {name: 'ü', steps: [echo ü]}}",
}


def on_the_page() -> list[str]:
    """Return all examples of docs/pipelines.md."""
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


ALL: Final = {**{f"example {number} of the page": text for number, text in enumerate(on_the_page(), 1)}, **OTHERS}
