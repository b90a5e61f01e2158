"""A large repository: its pipeline file, and changes in it."""

from __future__ import annotations

PROJECT = """\
  {name}: {{folder: packages/{name}, depends-on: [{needs}]}}
"""
JOBS = """\
  build-{name}:
    project: {name}
    runs-on: [linux]
    steps:
      - name: Build ${{{{ github.ref_name }}}}
        run: make -C packages/{name} VERSION=${{{{ github.sha }}}}
      - {{uses: upload-artifact, with: {{name: {name}, path: packages/{name}/dist}}}}
  test-{name}:
    project: {name}
    needs: build-{name}
    strategy:
      matrix:
        python: ['3.12', '3.13']
    steps:
      - {{uses: download-artifact, with: {{name: {name}}}}}
      - run: make -C packages/{name} test PYTHON=${{{{ matrix.python }}}}
      - {{if: failure(), run: make -C packages/{name} logs}}
    artifacts: [{{path: 'packages/{name}/report.xml', type: junit}}]
  ship-{name}:
    needs: test-{name}
    project: {name}
    if: github.ref == 'refs/heads/main' && github.event_name == 'push'
    steps: [make -C packages/{name} ship]
"""


def pipeline(projects: int) -> str:
    """A file with four jobs for every project; each project depends on up to three earlier ones."""
    names = [f"p{number}" for number in range(projects)]
    needs = [
        dict.fromkeys(f"p{number // divisor}" for divisor in (2, 3, 5) if number // divisor < number)
        for number in range(projects)
    ]
    told = [PROJECT.format(name=name, needs=", ".join(each)) for name, each in zip(names, needs, strict=True)]
    return "projects:\n" + "".join(told) + "jobs:\n" + "".join(JOBS.format(name=name) for name in names)


def files(count: int, projects: int) -> list[str]:
    """All files of the repository."""
    return [f"packages/p{number % projects}/src/m{number % 7}/file{number}.py" for number in range(count)]
