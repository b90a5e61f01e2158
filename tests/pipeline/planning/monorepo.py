"""A large repository: its pipeline file and the paths of its files."""

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
    """Return a file with four jobs per project. Each project depends on up to three earlier projects."""
    names = [f"p{number}" for number in range(projects)]
    needs = [
        dict.fromkeys(f"p{number // divisor}" for divisor in (2, 3, 5) if number // divisor < number)
        for number in range(projects)
    ]
    projects_yaml = [
        PROJECT.format(name=name, needs=", ".join(project_needs))
        for name, project_needs in zip(names, needs, strict=True)
    ]
    return "projects:\n" + "".join(projects_yaml) + "jobs:\n" + "".join(JOBS.format(name=name) for name in names)


def files(count: int, projects: int) -> list[str]:
    """Return the paths of all files of the repository."""
    return [f"packages/p{number % projects}/src/m{number % 7}/file{number}.py" for number in range(count)]
